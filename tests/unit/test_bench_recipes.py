"""The `vllm bench` commands of docs/bench.md, by vLLM's parsers; tests/e2e/test_metrics.py runs one."""

from __future__ import annotations

import json

import pytest

from tests.support.engine import ROOT
from tests.support.readme import blocks, commands, engine_arguments, split

PAGE = ROOT / "docs/bench.md"
SERVE, SWEEP = (
    words
    for block in blocks("bash", PAGE)
    for command in commands(block)
    if (words := split(command)[1])[:2] == ["vllm", "bench"]
)
(KINDS,) = blocks("json", PAGE)


def parsed(add_cli_args, words):
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    return parser.parse_args(words)


def of_bench_serve(words):
    from vllm.benchmarks.serve import add_cli_args

    assert words[:3] == ["vllm", "bench", "serve"]
    return parsed(add_cli_args, words[3:])


def test_bench_serve():
    asked = of_bench_serve(SERVE)
    assert (asked.port, asked.dataset_name, asked.temperature) == (8000, "sharegpt", 0)
    assert asked.num_prompts > 10 * asked.max_concurrency  # near the end fewer are in flight
    with pytest.raises(SystemExit):
        of_bench_serve([*SERVE, "--max-concurency-typo=1"])


def test_sweep_starts_both_kinds(tmp_path, monkeypatch, capsys):
    from vllm.benchmarks.sweep.cli import add_cli_args
    from vllm.benchmarks.sweep.serve import SweepServeArgs

    monkeypatch.chdir(tmp_path)
    (tmp_path / "TARGET").mkdir()  # a name on the hub would be looked up there
    (tmp_path / "kinds.json").write_text(KINDS)
    given = parsed(add_cli_args, [*SWEEP[3:], "--dry-run"])
    given.dispatch_function(given)
    assert capsys.readouterr().out.count("[BEGIN SERVER]") == 2
    asked = SweepServeArgs.from_cli_args(given)
    assert of_bench_serve(asked.bench_cmd).dataset_path == "prompts.json"
    served = [engine_arguments(kind.apply_to_cmd(asked.serve_cmd)) for kind in asked.serve_params]
    draft = json.loads(KINDS)["draft"]["speculative_config"]
    assert [arguments.speculative_config for arguments in served] == [None, draft]
