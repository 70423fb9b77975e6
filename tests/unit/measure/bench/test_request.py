"""What `vllm-eagle bench` refuses before an engine is started, and what it resolves."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.support.engine import TINY
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.measure.bench.engines import engine_arguments
from vllm_eagle_ext.measure.bench.request import BenchRequest, resolve_bench
from vllm_eagle_ext.measure.bench.results import PLAIN, Variant

REQUEST = BenchRequest(
    target=str(TINY / "target"), drafts=[str(TINY / "postnorm")], ks=[5, 3], concurrency=[4, 1, 4]
)

HYBRID = {"target": str(TINY / "hybrid_target"), "drafts": [str(TINY / "dflash")]}


def test_nothing_is_left_open():
    settings, prompts = resolve_bench(REQUEST)
    assert settings.ks == [3, 5]
    assert settings.concurrency == [1, 4]
    assert settings.served == {REQUEST.drafts[0]: {"method": "eagle3", "model": REQUEST.drafts[0]}}
    assert settings.chat_template is True  # the tiny target has one
    assert settings.num_prompts == len(prompts[0]) == 20


def test_the_same_request_resolves_alike():
    assert resolve_bench(REQUEST)[0] == resolve_bench(REQUEST)[0]
    other = resolve_bench(replace(REQUEST, chat_template=False))[0]
    assert other.prompts_sha256 != resolve_bench(REQUEST)[0].prompts_sha256


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"concurrency": [64]}, "--concurrency is 64. Allowed: at most the 40 prompts"),
        ({"engine": {"model": "x"}}, "--engine is ['model']"),
        ({"engine": {"tensor_parallel_size": 0}}, "tensor_parallel_size"),
        ({"drafts": ["nowhere/at/all"]}, "DRAFT is 'nowhere/at/all'"),
        ({"target": str(TINY / "hybrid_target"), "drafts": [str(TINY / "dflash")], "ks": [99]}, "K=99"),
        ({"prompts": "nothing.txt"}, "--prompts is 'nothing.txt'"),
        ({"thinking": True}, "no such switch"),
        ({"prompt_tokens": 64}, "only with --dummy"),
        ({"synthetic_acceptance": [9.0]}, "--synthetic-acceptance is [9.0]"),
    ],
)
def test_what_is_refused(change, said):
    with pytest.raises(EagleExtError) as refused:
        resolve_bench(replace(REQUEST, **change))
    assert said in str(refused.value)


def test_every_variant_runs_as_the_check_decided():
    """On a CPU a hybrid target runs without prefix caching, also without a draft."""
    settings, _ = resolve_bench(replace(REQUEST, **HYBRID, ks=[3]))
    drafted = [Variant(kind=kind, draft=HYBRID["drafts"][0], k=3) for kind in ("stock", "ours")]
    for variant in (PLAIN, *drafted):
        assert engine_arguments(settings, variant)["enable_prefix_caching"] is False
    assert "enable_prefix_caching" not in resolve_bench(REQUEST)[0].engine


def test_dummy_weights_take_random_tokens():
    settings, prompts = resolve_bench(replace(REQUEST, dummy=True, prompt_tokens=12))
    assert {len(ids) for ids in prompts[0]} == {12}
    assert len(prompts[0]) == 8
    assert settings.ignore_eos
    assert (
        max(map(max, prompts[0])) < json.loads((TINY / "target/config.json").read_text())["vocab_size"]
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--concurrency", "0"], "--concurrency"),
        (["-k", "a"], "-k"),
        (["--variants", "theirs"], "--variants"),
        (["--engine", "[]"], "--engine"),
        ([], "--target"),
    ],
)
def test_options_that_cannot_be_read(arguments, said):
    base = ["bench", "--target", "t", "--draft", "d"] if arguments else ["bench"]
    result = CliRunner().invoke(app, base + arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_a_folder_that_holds_a_report_is_kept(tmp_path):
    (tmp_path / "report.json").write_text("{}")
    given = ["bench", REQUEST.drafts[0], "--target", REQUEST.target, "--out", str(tmp_path)]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert "a folder without a report.json" in result.stderr
