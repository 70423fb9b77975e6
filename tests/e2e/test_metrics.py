"""What `/metrics` says of a served draft, vLLM's counters and our gauges, and that the dashboard and the
alert rules in examples/ ask for nothing else. On the hybrid pair, which has all of them."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support import queries
from tests.support.engine import ROOT, TINY
from tests.support.hybrid import TARGET
from tests.support.processes import takes_connections, tree, wait_for_end
from tests.support.readme import blocks, commands, split
from tests.support.server import Server, free_port, wait_until_ready
from vllm_eagle_ext.start import metrics

pytestmark = [pytest.mark.e2e, pytest.mark.full]

K, PROMPTS, MAX_TOKENS = 7, 6, 48
SCRAPED = {"job", "instance"}  # Prometheus adds them


CANARY = """
import pathlib
pathlib.Path(__file__).with_name("ran").touch()
from transformers import PretrainedConfig, PreTrainedModel
class Config(PretrainedConfig):
    model_type = "qwen3"
class Model(PreTrainedModel):
    config_class = Config
"""


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    """With code of its own, as drafts of the hub have it."""
    folder = shutil.copytree(TINY / "dflash", tmp_path_factory.mktemp("drafts") / "dflash")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "modeling.Config", "AutoModel": "modeling.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling.py").write_text(CANARY)
    return folder


@pytest.fixture(scope="module")
def server(draft, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "server.log"
    with Server(
        draft=draft,
        k=K,
        log=log,
        arguments=["--no-enable-prefix-caching", "--shutdown-timeout=60"],
        target=TARGET,
        method="dflash",
    ) as running:
        yield running


def families(server) -> list:
    return list(text_string_to_metric_families(httpx.get(f"{server.root_url}/metrics").text))


def read(server) -> dict[str, list]:
    """Samples by name."""
    page: dict[str, list] = {}
    for family in families(server):
        for sample in family.samples:
            page.setdefault(sample.name, []).append(sample)
    return page


def count(page, name: str) -> list[float]:
    return [sample.value for sample in page[f"vllm:spec_decode_num_{name}_total"]]


def steps_of(server, prompt: list[int]) -> list[int]:
    """Tokens that each step of a streamed answer emitted; the first is the prompt's own."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
    body |= {"ignore_eos": True, "return_token_ids": True, "stream": True}
    steps = []
    with httpx.stream("POST", f"{server.url}/completions", json=body, timeout=60) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                steps += [len(c["token_ids"] or ()) for c in json.loads(line[6:])["choices"]]
    return [step for step in steps if step]


def test_counters_tell_what_the_client_received(server, prompts):
    """Each chunk of a stream is a step: its tokens but one were accepted. The last chunk is cut at
    max_tokens, while vLLM counts what it accepted there. For a client that lags, as on a slow CPU, vLLM
    joins chunks: then only the sums are known."""
    before = read(server)
    answers = [steps_of(server, prompt) for prompt in prompts[:PROMPTS]]
    after = read(server)
    assert {sum(steps) for steps in answers} == {MAX_TOKENS}
    drafts, drafted, accepted, per_position = (
        [b - a for a, b in zip(count(before, name), count(after, name), strict=True)]
        for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
    )
    whole = [step - 1 for steps in answers for step in steps[1:-1]]
    last = [steps[-1] - 1 for steps in answers]
    expected = [sum(n > position for n in whole) for position in range(K)]
    print(f"\n{drafts} drafts, per position {per_position}, of whole steps {expected}, last {last}")
    assert drafted == [K * drafts[0]]
    assert accepted == [sum(per_position)]
    assert sum(expected) > 0
    # A step gives its accepted tokens and one more; the first token of a text comes without a draft.
    received = sum(sum(steps) - 1 for steps in answers)
    assert received <= drafts[0] + accepted[0] <= received + K * len(answers)
    assert sorted(per_position, reverse=True) == per_position
    assert per_position[0] <= drafts[0]
    if drafts != [len(whole) + len(last)]:
        assert drafts[0] > len(whole) + len(last)
        return
    assert {steps[0] for steps in answers} == {1}
    for position, (total, least) in enumerate(zip(per_position, expected, strict=True)):
        seen = sum(n > position for n in last)
        assert least + seen <= total <= least + len(last)


def test_our_gauges(server):
    page = read(server)
    (draft,) = page[metrics.DRAFT_INFO]
    assert draft.value == 1
    assert draft.labels["aux_layers"] == "1,3,5,7"
    assert draft.labels["drafter"] == "DFlashEagleExtQwen3ForCausalLM"
    (engine,) = {sample.labels["model_name"] for sample in page["vllm:num_requests_running"]}
    assert draft.labels["model_name"] == engine
    (blocks,) = page[metrics.STATE_BLOCKS]
    assert blocks.labels == {"model_name": engine, "state": "replay"}
    # The engine's own line is made from the layers that it built, in another process.
    line = re.search(r"replay, (\d+) state blocks per request \(per_token: ", server.log.read_text())
    assert int(blocks.value) == int(line[1])


def test_panels_and_alerts_ask_for_what_there_is(server):
    page = read(server)
    labels = {name: set().union(*(s.labels for s in samples)) for name, samples in page.items()}
    grows = {s.name: f.type in ("counter", "histogram") for f in families(server) for s in f.samples}
    made = {"up": SCRAPED} | {
        rule["record"]: {"model_name", "position"} for rule in queries.rules("record")
    }
    labels, grows = labels | made, grows | dict.fromkeys(made, False)
    asked = {name: {label} for name, label in queries.variables(queries.load()).values()}
    for expression in queries.expressions():
        parsed = queries.parse(expression)
        for metric, matched in parsed.labels.items():
            asked.setdefault(metric, set()).update(matched)
            assert grows[metric] == (metric in parsed.growing), f"{metric} in {expression}"
        known = set().union(*(labels[metric] for metric in parsed.labels))
        assert parsed.grouped <= known | SCRAPED, expression
    for metric, wanted in asked.items():
        assert wanted <= labels[metric] | SCRAPED, metric
    assert {name for name in labels if name.startswith("vllm_eagle_ext:")} <= set(asked)


def prometheus_s(url: str, question: str, **parameters: str) -> Any:
    """What its API answers."""
    answer = httpx.get(f"{url}/api/v1/{question}", params=parameters).json()
    assert answer["status"] == "success", f"{answer} {parameters}"
    return answer["data"]


@pytest.mark.long
def test_prometheus_answers_each_panel_and_rule(server, prompts, prometheus, tmp_path):
    """It scrapes this server by examples/grafana/prometheus.yml, each second."""
    text = queries.ALERTS.with_name("prometheus.yml").read_text()
    for shown, here in {
        "127.0.0.1:8000": f"127.0.0.1:{server.port}", ": 15s": ": 1s", ": 1m": ": 1s",
        "[alerts.yml]": f"[{queries.ALERTS}]",
    }.items():  # fmt: skip
        assert shown in text
        text = text.replace(shown, here)
    (tmp_path / "prometheus.yml").write_text(text)
    port = free_port()
    command = [prometheus / "prometheus", f"--config.file={tmp_path}/prometheus.yml"]
    command += [f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}"]
    url = f"http://127.0.0.1:{port}"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
    try:
        wait_until_ready(process, url, page="-/ready")
        for prompt in prompts[:3]:  # seconds apart, as a rate wants them
            steps_of(server, prompt)
            time.sleep(3)
        for expression in queries.shown(queries.load()):
            query = re.sub(r"\$\w+", ".+", expression.replace("$__rate_interval", "1m"))
            assert prometheus_s(url, "query", query=query)["result"], expression
        (group,) = prometheus_s(url, "rules")["groups"]
        assert {rule["health"] for rule in group["rules"]} == {"ok"}, group
        for rule in queries.rules("record"):
            assert prometheus_s(url, "query", query=rule["record"])["result"], rule
        assert prometheus_s(url, "alerts")["alerts"] == []
    finally:
        process.terminate()
        process.wait(60)


def test_vllm_bench_reads_the_same_acceptance(server, tmp_path):
    """The command of docs/bench.md, with fewer and shorter requests."""
    prompts = [json.loads(line) for line in (TINY / "prompts.jsonl").read_text().splitlines()]
    turns = [{"conversations": [{"value": p["text"]}, {"value": p["text"]}]} for p in prompts]
    (tmp_path / "prompts.json").write_text(json.dumps(turns))
    command = next(b for b in blocks("bash", ROOT / "docs/bench.md") if b.startswith("vllm bench serve"))
    for shown, here in {
        "--port 8000": f"--port {server.port}", "--num-prompts 200": "--num-prompts 8",
        "--sharegpt-output-len 256": "--sharegpt-output-len 24", "--num-warmups 8": "--num-warmups 0",
        "ShareGPT_V3_unfiltered_cleaned_split.json": f"{tmp_path}/prompts.json",
    }.items():  # fmt: skip
        assert shown in command
        command = command.replace(shown, here)
    before = read(server)
    words = [str(Path(sys.executable).with_name("vllm")), *split(commands(command)[0])[1][1:]]
    done = subprocess.run(words, env=server.environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = read(server)
    said = dict(re.findall(r"^(.+):\s+([\d.]+)\s*$", done.stdout, re.MULTILINE))
    for line, name in (("Drafts", "drafts"), ("Accepted tokens", "accepted_tokens")):
        (first,), (last,) = count(before, name), count(after, name)
        assert int(said[line]) == last - first > 0
    assert float(said["Acceptance length"]) > 1
    assert {"Output token throughput (tok/s)", "Mean TPOT (ms)", "  Position 0"} <= set(said)


def test_no_code_of_the_draft_runs(server, draft):
    assert not (draft / "ran").exists()
    runpy.run_path(str(draft / "modeling.py"))  # it would have been seen
    assert (draft / "ran").exists()


def test_terminated_in_mid_answer(server, prompts):
    """With a --shutdown-timeout, answers are ended first. Last of the tests on this server."""
    processes = tree(server.process.pid)
    body = {"model": "tiny", "prompt": prompts[0], "max_tokens": 300, "ignore_eos": True, "stream": True}
    lines = []
    with httpx.stream("POST", f"{server.url}/completions", json=body, timeout=60) as reply:
        for line in reply.iter_lines():
            if not lines:
                server.process.send_signal(signal.SIGTERM)
            lines += [line] if line else []
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2][6:])["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(60) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
    assert wait_for_end(processes) == []
    assert not takes_connections(server.port)


@pytest.mark.long
def test_several_api_servers_show_one_draft(tmp_path, prompts):
    """Each process reads the command line; Prometheus's files of several processes hold them once."""
    arguments = ["--api-server-count=2"]
    with Server(draft=TINY / "postnorm", k=4, log=tmp_path / "log", arguments=arguments) as running:
        body = {"model": "tiny", "prompt": prompts[0], "max_tokens": 8, "temperature": 0}
        for _ in range(8):  # whichever of the two answers
            httpx.post(f"{running.url}/completions", json=body, timeout=60).raise_for_status()
            (draft,) = read(running)[metrics.DRAFT_INFO]
            assert draft.labels["model_name"] == "tiny"
            assert draft.value == 1
