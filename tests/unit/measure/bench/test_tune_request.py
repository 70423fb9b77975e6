"""What `vllm-eagle tune` refuses before an engine is started, and what it resolves."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.support.checkpoints import write_target
from tests.support.drafts import valid_draft, write
from tests.support.engine import TINY
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.measure.bench.request import BenchRequest
from vllm_eagle_ext.measure.bench.tune_request import resolve_tune, usual_lengths, with_context

REQUEST = BenchRequest(drafts=[str(TINY / "postnorm")], target=str(TINY / "target"), k=4, together=None)
HYBRID = replace(REQUEST, target=str(TINY / "hybrid_target"), drafts=[str(TINY / "dflash")], k=7)


def test_nothing_is_left_open():
    resolved, prompts = resolve_tune(REQUEST)
    assert resolved.ks == [0, 1, 2, 3, 4]
    assert resolved.concurrency == [1, 2, 4, 8, 16, 32]
    assert resolved.contexts == [64, 512] == sorted(prompts)
    assert resolved.served[REQUEST.drafts[0]]["method"] == "eagle3"
    assert all(len(ids) >= context for context, found in prompts.items() for ids in found)
    assert max(map(len, prompts[512])) < 800
    assert resolved.together  # on a CPU
    assert resolve_tune(REQUEST)[0] == resolved


def test_a_hybrid_target_runs_without_prefix_caching_on_a_cpu():
    resolved, _ = resolve_tune(HYBRID)
    assert resolved.engine["enable_prefix_caching"] is False
    assert resolved.ks == [0, 1, 2, 3, 4, 6, 7]


def test_the_usual_loads_keep_to_the_engine():
    assert resolve_tune(replace(REQUEST, engine={"max_num_seqs": 8}))[0].concurrency == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"engine": {"model": "x"}}, "--engine is ['model']"),
        ({"drafts": ["nowhere/at/all"]}, "DRAFT is 'nowhere/at/all'"),
        ({"k": 4, "target": str(TINY / "hybrid_target")}, "K=4"),
        ({"ks": [5]}, "--lengths is [5]. Allowed: lengths from 0 to 4"),
        ({"ks": [1, 2]}, "with 4 among them"),
        ({"concurrency": [64]}, "at most the 40 prompts"),
        ({"concurrency": [16], "engine": {"max_num_seqs": 8}}, "at most max_num_seqs, 8"),
        ({"contexts": [4000]}, "max_model_len is 2048. Allowed: at least"),
        ({"engine": {"max_model_len": 512}}, "shorten --context or --steps"),
        ({"speculative": {"enable_adaptive_verification": True}}, "--adaptive measures"),
        ({"adaptive": True}, "--adaptive is True. Allowed: on a GPU and the V2 runner"),
        ({"speculative": {"num_speculative_tokens_per_batch_size": [[1, 8, 2]]}}, "finds the schedule"),
        ({"eagle_ext": {"enabled": False}}, "--eagle-ext: enabled is False"),
        ({"prompts": "nothing.txt"}, "--prompts is 'nothing.txt'"),
    ],
)
def test_what_is_refused(change, said):
    with pytest.raises(EagleExtError) as refused:
        resolve_tune(replace(REQUEST, **change))
    assert said in str(refused.value)


@pytest.fixture
def parallel(tmp_path):
    """A request with a draft whose tokens vLLM's V1 runner always makes K of."""
    draft = write(valid_draft("p-eagle"), tmp_path / "draft")
    target = write_target(tmp_path / "target")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (target / file).write_bytes((TINY / "target" / file).read_bytes())
    return replace(REQUEST, drafts=[str(draft)], target=str(target))


def test_lengths_of_drafts_that_are_made_in_parallel(parallel):
    allowed = replace(parallel, contexts=(64,), concurrency=(1,))
    assert resolve_tune(allowed)[0].ks == [0, 4]
    assert resolve_tune(replace(allowed, ks=[4]))[0].ks == [0, 4]
    with pytest.raises(EagleExtError, match=r"--lengths is \[2, 4\]\. Allowed: 0 and 4"):
        resolve_tune(replace(allowed, ks=[2, 4]))


def test_adaptive_verification_is_for_gpus(monkeypatch):
    gpu = ("cuda", "a GPU is assumed")
    monkeypatch.setattr("vllm_eagle_ext.preflight.check.find_platform", lambda _: gpu)
    assert resolve_tune(replace(REQUEST, adaptive=True))[0].adaptive


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--context", "none"], "--context"),
        (["--concurrency", "0"], "--concurrency"),
        (["--lengths", "1,x"], "--lengths"),
        (["--engine", "[]"], "--engine"),
        (["--rounds", "0"], "--rounds"),
        (["--lengths", "9"], "--lengths is [9]"),
        (["-k", "4", "--context", "9000"], "max_model_len is 2048"),
    ],
)
def test_bad_input_exits_with_2(words, said, tmp_path):
    command = [
        "tune",
        REQUEST.drafts[0],
        "--target",
        REQUEST.target,
        "--out",
        str(tmp_path / "o"),
        *words,
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert said in result.output
    assert not (tmp_path / "o").exists()


def test_errors_are_json_where_json_is_asked_for(tmp_path):
    command = ["tune", "nowhere/at/all", "--target", REQUEST.target, "--out", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, command)
    assert json.loads(result.stdout.splitlines()[-1])["exit_code"] == 2


@settings(deadline=None)
@given(st.integers(1, 32))
def test_usual_lengths(k):
    found = usual_lengths(k)
    assert found == sorted(set(found))
    assert {0, 1, k} <= set(found)
    assert set(range(min(k, 4) + 1)) <= set(found)
    assert len(found) <= 12


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 300))
def test_texts_are_put_together_until_they_are_long_enough(tokens, least):
    texts = [f"text {number}" for number in range(len(tokens))]
    found = with_context(texts, tokens, least)
    for text, whole in zip(texts, found, strict=True):
        parts = whole.split("\n\n")
        counted = [tokens[texts.index(part)] for part in parts]
        assert parts[-1] == text  # what is to be answered stays last
        assert sum(counted) >= least
        assert sum(counted[1:]) < least  # and no more than needed
