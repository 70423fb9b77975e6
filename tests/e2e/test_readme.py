"""Every command and program in the README and the other guides is run by a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.engine import ROOT, TIMEOUT_S, engine_environment, has_gpu
from tests.support.memory import most_memory_taken
from tests.support.readme import GUIDES, USAGE, blocks, commands, split
from tests.support.server import (
    STOP_TIMEOUT_S,
    assert_first_log,
    free_port,
    recipe,
    wait_until_ready,
)
from vllm_eagle_ext.engine_rules.weights import BF16_FALLBACK

# Command -> the test that runs it, or what CI runs.
RUN_BY = {
    "make demo": "tests/e2e/test_readme.py",
    "make serve": "tests/e2e/test_server.py",
    "make test": ".ci/run",
    "make test-full": ".ci/run",
    "make test-peers": ".ci/run",
    "make lint": ".ci/run",
    "make soak": "tests/e2e/test_soak.py",
    "make test-long": "tests/e2e/test_readme.py",  # by its marker: `make test-long` runs those tests
    "make contract VLLM=0.33.0": "tests/e2e/test_readme.py",
    "make bench-guard": "tests/unit/benchmarks/test_guard.py",  # what it lets pass
    "make build": "tests/e2e/test_readme.py",
    "vllm serve TARGET --speculative-config": "tests/e2e/test_draft_window.py",
    "pip install .[cuda]": "tests/e2e/test_packaging.py",
    "pip install .[cuda,measure]": "tests/e2e/test_packaging.py",
    "pip install .[measure]": "tests/e2e/test_packaging.py",
    "hf download": "tests/unit/test_recipes.py",  # its options; the sizes are hundreds of GiB
    "vllm serve Qwen/Qwen3.6-27B": "tests/unit/test_recipes.py",
    "vllm serve openai/gpt-oss-120b": "tests/unit/test_recipes.py",
    "vllm serve baichuan-inc/Baichuan-M3-235B": "tests/unit/test_recipes.py",
    "vllm serve examples/tiny": "tests/e2e/test_serving_examples.py",
    ". .venv/bin/activate": "tests/e2e/test_readme.py",
    "python tools/preload.py vllm serve": "tests/e2e/test_readme.py",
    "vllm bench serve": "tests/e2e/test_metrics.py",
    "vllm bench sweep serve": "tests/unit/test_bench_recipes.py",
    "export": "tests/e2e/test_serving_examples.py",
    "ray start": "tests/e2e/test_serving_examples.py",
    "python -m benchmarks.step_times": "tests/unit/benchmarks/test_step_times.py",  # what it prints
    "python -m benchmarks.performance": "tests/e2e/test_bench.py",  # `bench`; all of it: 45 minutes
    "vllm-eagle status": "tests/unit/cli/test_status.py",
    "vllm-eagle selftest": "tests/unit/measure/selftest/test_selftest.py",
    "vllm-eagle check": "tests/e2e/test_readme.py",
    "vllm-eagle plan": "tests/e2e/test_readme.py",
    "vllm-eagle verify": "tests/e2e/test_verify.py",
    "vllm-eagle bench": "tests/e2e/test_bench.py",
    "vllm-eagle tune": "tests/e2e/test_tune.py",
    "vllm-eagle convert": "tests/e2e/test_convert.py",
    "vllm-eagle rule": "tests/unit/cli/test_rule.py",
    "vllm-eagle vocabulary": "tests/unit/measure/test_vocabulary.py",
    "python -m benchmarks.virtual_clock": "tests/unit/memory/test_virtual_clock.py",
    "python -m benchmarks.modelled_page": "tests/unit/benchmarks/test_modelled_page.py",
}


@pytest.fixture(scope="module")
def shared_machine():
    """The environment of a user on a machine whose memory others have taken."""
    environment = engine_environment("v1")
    del environment["VLLM_CPU_KVCACHE_SPACE"]  # with it vLLM does not ask how much memory is free
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    if has_gpu():
        yield environment
        return
    with most_memory_taken() as left:
        print(f"\n{left:.0%} of the node's memory is left")
        assert 0.3 < left < 0.45  # room for what the README asks for, none for vLLM's default
        yield environment


@pytest.mark.promise("every command of the README is run by a test")
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_is_known_to_a_test(page):
    for command in (command for block in blocks("bash", page) for command in commands(block)):
        words = " ".join(split(command)[1])
        known = max((name for name in RUN_BY if words.startswith(name)), key=len, default=None)
        assert known is not None, f"no test runs {command!r}"
        assert (ROOT / RUN_BY[known]).exists()


def test_the_first_guides_show_commands():
    shown = [
        command for page in (GUIDES[0], USAGE) for b in blocks("bash", page) for command in commands(b)
    ]
    assert len(shown) >= 16


@pytest.mark.promise("`plan` prints what docs/usage.md shows")
def test_plan_block(tmp_path):
    """The target's published sizes in place of the hub's file."""
    model = "Qwen/Qwen3.6-27B"
    fixture = json.loads((ROOT / "tests/fixtures/hybrid/qwen3_6_27b.json").read_text())
    folder = tmp_path / model
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(fixture["config"]))
    command = next(b for b in blocks("bash", USAGE) if b.startswith("vllm-eagle plan")).split()
    command[0] = str(Path(sys.executable).parent / command[0])
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    shown = next(b for b in blocks("text", USAGE) if b.startswith(model))
    assert " ".join(shown.split()) == " ".join(result.stdout.split())


@pytest.mark.promise("`check` prints what docs/usage.md shows")
def test_check_block():
    command = next(b for b in blocks("bash", USAGE) if b.startswith("vllm-eagle check")).split()
    command[0] = str(Path(sys.executable).parent / command[0])
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    shown = next(b for b in blocks("text", USAGE) if b.startswith("examples/tiny/postnorm"))
    printed = " ".join(result.stdout.split())
    without_avx512 = f"warning dtype_has_a_kernel: dtype is 'bfloat16' {BF16_FALLBACK} "
    assert " ".join(shown.split()) == printed.replace(without_avx512, "")


def test_make_serve_runs_what_is_shown():
    shown = [split(one)[1] for one in commands(blocks("bash", USAGE)[2])][-1]
    made = split(recipe("serve"))[1]
    assert shown[2:4] == ["vllm", "serve"]
    assert made[1:4] == ["tools/preload.py", ".venv/bin/vllm", "serve"]
    assert values(shown) == values(made)


def values(words: list[str]) -> list[object]:
    """Words, those that are JSON without their blanks."""
    return [json.loads(word) if word.startswith("{") else word for word in words[4:]]


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize("number", [1, 2], ids=["make serve", "what it runs"])
def test_serve_blocks(number, shared_machine, tmp_path):
    """As pasted into a terminal, but for the port and the set-up, which has been run."""
    port, block = free_port(), blocks("bash", USAGE)[number]
    environment = shared_machine | {"PORT": str(port), "PYTHON": "true"}
    for name in ("LD_PRELOAD", "MAKEFLAGS", "PATH"):  # the block has to see to them
        environment.pop(name, None)
    log = tmp_path / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            ["bash", "-c", block.replace("--port 8000", f"--port {port}")],
            cwd=ROOT, env=environment | {"PATH": os.defpath}, start_new_session=True,
            stdout=stream, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_until_ready(process, f"http://127.0.0.1:{port}", TIMEOUT_S)
        body = {"model": "tiny", "prompt": "import os\n", "max_tokens": 8}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 8
    finally:
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert_first_log(log.read_text())


@pytest.mark.e2e
@pytest.mark.long
def test_llm_block(shared_machine, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(blocks("python", USAGE)[0])
    result = subprocess.run(
        [sys.executable, str(program)],
        cwd=ROOT,
        env=shared_machine,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    said = " ".join(next(b for b in blocks("text", USAGE) if b.startswith("Draft")).split())
    assert said in " ".join(result.stdout.split())


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("make contract VLLM=0.33.0", "vLLM 0.33.0"),
        ("make build", "Successfully built"),
        ("make demo TINY=1", "speed-up"),
    ],
)
def test_make_target(command, said):
    result = subprocess.run(
        command.split(), cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert said in result.stdout
