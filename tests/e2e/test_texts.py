"""Drafting changes no text, the log says what serves, and stock runs stay stock."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import MAX_TOKENS, K
from tests.support.engine import ROOT, TINY, EngineRun, run_engine
from tests.support.near_ties import NEAR_TIE_GAP, near_tie_gaps, near_tie_share

pytestmark = [pytest.mark.e2e, pytest.mark.full]

DRAFTER = "Eagle3EagleExtLlamaForCausalLM"


@pytest.mark.parametrize(
    "name",
    ["v1_postnorm", "v1_native", pytest.param("v2_postnorm", marks=pytest.mark.v2)],
)
def test_greedy_text_is_that_without_a_draft(plain, name, request):
    drafted = request.getfixturevalue(name)
    count = len(drafted.outputs)
    gaps = near_tie_gaps(plain.outputs[:count], plain.logprobs[:count], drafted.outputs)
    print(f"\n{name}: {len(gaps)} of {count} texts diverge, near-tie gaps {sorted(gaps)}")
    assert max(gaps, default=0.0) <= NEAR_TIE_GAP
    assert len(gaps) <= near_tie_share(0.1) * count


@pytest.mark.v2
def test_log_of_v2_names_aux_layers_rule_and_drafter_once(v2_postnorm):
    """V1's: test_in_float32.py."""
    lines = [line for line in v2_postnorm.log.splitlines() if "the inputs of target layers" in line]
    assert len(lines) == 1
    for words in (
        "[2, 4, 6, 8, 10] of 12",
        "the input of layer id + 1",
        DRAFTER,
        "fc_norm, norm_output",
    ):
        assert words in lines[0]


def test_log_warns_of_default_aux_layers(v1_native):
    lines = v1_native.log.splitlines()
    assert len([line for line in lines if "the inputs of target layers [2, 6, 9]" in line]) == 1
    (warning,) = (line for line in lines if "[2, 6, 9] is taken, EAGLE-3's default" in line)
    assert "WARNING" in warning


def test_stock_vllm_drafts_the_same_from_the_native_pair(v1_native, prompts):
    """The package adds nothing to a draft that vLLM serves rightly, and without it nothing is left."""
    run = EngineRun(
        prompts=prompts[:40],
        max_tokens=MAX_TOKENS,
        draft=TINY / "native",
        k=K,
        record_drafts=True,
        environment={"VLLM_PLUGINS": ""},
    )
    stock = run_engine(run)
    assert "the inputs of target layers" not in stock.log
    assert "EagleExt" not in stock.log
    assert_same(stock, v1_native)


def assert_same(stock, ours):
    assert stock.outputs == ours.outputs
    assert stock.drafts == ours.drafts
    assert stock.num_drafts == ours.num_drafts > 0
    assert stock.accepted_per_position == ours.accepted_per_position


@pytest.mark.long
@pytest.mark.v2
def test_stock_vllm_drafts_the_same_on_v2(prompts):
    common = {
        "prompts": prompts[:10],
        "max_tokens": 32,
        "draft": TINY / "native",
        "k": K,
        "runner": "v2",
        "concurrency": 5,
        "record_drafts": True,
    }
    ours, stock = EngineRun(**common), EngineRun(**common, environment={"VLLM_PLUGINS": ""})
    assert_same(run_engine(stock), run_engine(ours))


def test_a_run_without_a_draft_hears_nothing_of_the_package(plain, prompts):
    run = EngineRun(prompts=prompts[:30], max_tokens=MAX_TOKENS, logprobs=5)
    with_plugin = run_engine(run)
    assert "eagle" not in with_plugin.log.replace(str(ROOT), "").lower()
    assert with_plugin.outputs == plain.outputs[:30]
    assert with_plugin.logprobs == plain.logprobs[:30]
