"""What `vllm-eagle bench` refuses before an engine is started, and what it resolves."""

from __future__ import annotations

import functools
import json
from contextlib import ExitStack, nullcontext
from inspect import signature

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.support.checkpoints import write_target
from tests.support.drafts import valid_draft, write
from tests.support.engine import TINY
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.cli.bench import bench
from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.measure.bench.request import resolve, usual_lengths, with_context
from vllm_eagle_ext.measure.bench.results import KINDS, PLAIN, Variant
from vllm_eagle_ext.measure.bench.runner import engine_arguments
from vllm_eagle_ext.measure.tokenizer import Tokenizer

REQUEST = {
    name: parameter.default for name, parameter in signature(bench).parameters.items()
} | {
    "target": str(TINY / "target"), "drafts": [str(TINY / "postnorm")], "ks": [5, 3],
    "concurrency": [4, 1, 4], "kinds": KINDS, "contexts": (64, 512), "engine": {}, "speculative": {},
    "eagle_ext": {}, "synthetic_acceptance": (),
}  # fmt: skip
SCHEDULE = REQUEST | {"schedule": True, "ks": [4], "concurrency": None}
HYBRID = {"target": str(TINY / "hybrid_target"), "drafts": [str(TINY / "dflash")]}


@pytest.fixture(autouse=True, scope="module")
def shared_tokenizers():
    """One process for each tokenizer: its imports take seconds."""
    with ExitStack() as started, pytest.MonkeyPatch.context() as patch:
        tokenizer = functools.cache(
            lambda *of, **how: nullcontext(started.enter_context(Tokenizer(*of, **how)))
        )
        for module in ("prompts", "bench.request"):
            patch.setattr(f"vllm_eagle_ext.measure.{module}.Tokenizer", tokenizer)
        yield


def test_nothing_is_left_open():
    resolved, prompts = resolve(REQUEST)
    assert resolved.ks == [3, 5]
    assert resolved.concurrency == [1, 4]
    assert resolved.served == {REQUEST["drafts"][0]: {"method": "eagle3", "model": REQUEST["drafts"][0]}}
    assert resolved.chat_template is True  # the tiny target has one
    assert resolved.num_prompts == len(prompts[0]) == 20
    assert (resolved.rounds, resolved.steps, resolved.together) == (3, 0, False)


def test_nothing_is_left_open_of_a_schedule():
    resolved, prompts = resolve(SCHEDULE)
    assert resolved.ks == [0, 1, 2, 3, 4]
    assert resolved.concurrency == [1, 2, 4, 8, 16, 32]
    assert resolved.contexts == [64, 512] == sorted(prompts)
    assert resolved.served[REQUEST["drafts"][0]]["method"] == "eagle3"
    assert all(len(ids) >= context for context, own in prompts.items() for ids in own)
    assert max(map(len, prompts[512])) < 800
    assert (resolved.rounds, resolved.steps, resolved.together) == (6, 24, True)  # on a CPU
    few, _ = resolve(SCHEDULE | dict(ks=[4, 2], engine={"max_num_seqs": 8}, contexts=(64,)))
    assert (few.ks, few.concurrency) == ([0, 2, 4], [1, 2, 4, 8])


def test_without_a_k_a_schedule_takes_the_drafts_own():
    """On a CPU a hybrid target runs without prefix caching."""
    resolved, _ = resolve(SCHEDULE | dict(**HYBRID, ks=None, contexts=(64,)))
    assert resolved.ks == [0, 1, 2, 3, 4, 6, 7]
    assert resolved.engine["enable_prefix_caching"] is False


REFUSED = [
    ({"concurrency": [64]}, "--concurrency is 64. Allowed: at most the 40 prompts"),
    ({"engine": {"model": "x"}}, "--engine is ['model']"),
    ({"engine": {"tensor_parallel_size": 0}}, "tensor_parallel_size"),
    ({"drafts": ["nowhere/at/all"]}, "DRAFT is 'nowhere/at/all'"),
    (HYBRID | {"ks": [99]}, "K=99"),
    ({"prompts": "nothing.txt"}, "--prompts is 'nothing.txt'"),
    ({"thinking": True}, "no such switch"),
    ({"prompt_tokens": 64}, "only with --dummy"),
    ({"synthetic_acceptance": [9.0]}, "--synthetic-acceptance is [9.0]"),
    ({"eagle_ext": {"enabled": False}}, "--eagle-ext: enabled is False"),
    (
        {"engine": {"additional_config": {"eagle_ext": {}}}},
        "Allowed: an object with keys of other plugins than eagle_ext",
    ),
    ({"engine": {"additional_config": "x"}}, "--engine: additional_config is 'x'"),
]
REFUSED_SCHEDULES = [
    ({"drafts": [*REQUEST["drafts"], "another"]}, "Allowed: one, with --schedule"),
    ({"target": str(TINY / "hybrid_target")}, "K=4"),
    ({"concurrency": [16], "engine": {"max_num_seqs": 8}}, "max_num_seqs (8)"),
    ({"contexts": [4000]}, "max_model_len is 2048. Allowed: at least"),
    ({"engine": {"max_model_len": 512}}, "shorten --context or --steps"),
    ({"speculative": {"enable_adaptive_verification": True}}, "--adaptive measures"),
    ({"speculative": {"num_speculative_tokens_per_batch_size": [[1, 8, 2]]}}, "finds the schedule"),
    ({"adaptive": True}, "--adaptive is True. Allowed: on a GPU and the V2 runner"),
]


@pytest.mark.parametrize(
    ("asked", "said"),
    [(REQUEST | change, said) for change, said in REFUSED]
    + [(SCHEDULE | change, said) for change, said in REFUSED_SCHEDULES],
)
def test_what_is_refused(asked, said):
    with pytest.raises(EagleExtError) as refused:
        resolve(asked)
    assert said in str(refused.value)


def test_a_schedule_of_a_draft_whose_tokens_are_always_k(tmp_path):
    """As vLLM's V1 runner makes them of an EAGLE-3 draft with parallel_drafting."""
    draft = write(valid_draft("p-eagle"), tmp_path / "draft")
    target = write_target(tmp_path / "target")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (target / file).write_bytes((TINY / "target" / file).read_bytes())
    asked = SCHEDULE | dict(drafts=[str(draft)], target=str(target), contexts=(64,), concurrency=(1,))
    assert resolve(asked)[0].ks == [0, 4]
    with pytest.raises(EagleExtError, match=r"-k is \[2, 4\]\. Allowed: one number"):
        resolve(asked | dict(ks=[2, 4]))


def test_adaptive_verification_is_for_gpus(monkeypatch):
    gpu = ("cuda", "a GPU is assumed")
    monkeypatch.setattr("vllm_eagle_ext.start.check.find_platform", lambda _: gpu)
    assert resolve(SCHEDULE | dict(adaptive=True))[0].adaptive


def test_every_variant_runs_as_the_check_decided():
    """On a CPU a hybrid target runs without prefix caching, also without a draft."""
    resolved, _ = resolve(REQUEST | dict(**HYBRID, ks=[3]))
    drafted = [Variant(kind=kind, draft=HYBRID["drafts"][0], k=3) for kind in ("stock", "ours")]
    for variant in (PLAIN, *drafted):
        assert engine_arguments(resolved, variant)["enable_prefix_caching"] is False
    assert "enable_prefix_caching" not in resolve(REQUEST)[0].engine


def test_dummy_weights_take_random_tokens():
    resolved, prompts = resolve(REQUEST | dict(dummy=True, prompt_tokens=12))
    assert {len(ids) for ids in prompts[0]} == {12}
    assert len(prompts[0]) == 8
    assert resolved.ignore_eos
    assert resolve(REQUEST | {"dummy": True, "prompt_tokens": 12})[1] == prompts
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
        (["--synthetic-acceptance", "x"], "--synthetic-acceptance"),
        (["--steps", "9"], "only with --schedule"),
        (["--schedule", "--dummy"], "without --schedule"),
        (["--schedule", "--context", "none"], "--context"),
        ([], "--target"),
    ],
)
def test_options_that_cannot_be_read(arguments, said):
    base = ["bench", "d", "--target", "t"] if arguments else ["bench"]
    result = CliRunner().invoke(app, base + arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_a_folder_that_holds_a_report_is_kept(tmp_path):
    (tmp_path / "report.json").write_text("{}")
    given = ["bench", REQUEST["drafts"][0], "--target", REQUEST["target"], "--result-dir", str(tmp_path)]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert "a folder without a report.json" in result.stderr


@settings(deadline=None)
@given(st.integers(1, 32))
def test_usual_lengths(k):
    lengths = usual_lengths(k)
    assert lengths == sorted(set(lengths))
    assert {0, 1, k, *range(min(k, 4) + 1)} <= set(lengths)
    assert len(lengths) <= 12


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 300))
def test_texts_are_put_together_until_they_are_long_enough(tokens, least):
    texts = [f"text {number}" for number in range(len(tokens))]
    for text, whole in zip(texts, with_context(texts, tokens, least), strict=True):
        parts = whole.split("\n\n")
        counted = [tokens[texts.index(part)] for part in parts]
        assert parts[-1] == text  # what is to be answered stays last
        assert sum(counted) >= least
        assert sum(counted[1:]) < least  # and no more than needed


def test_tune_names_the_command_that_does_it_now():
    result = CliRunner().invoke(app, ["tune", "d", "--target", "t", "--lengths", "1,2", "--help"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "`vllm-eagle bench --schedule`" in result.stderr
