"""Drafting changes no text, the log says what serves, and stock runs stay stock."""

from __future__ import annotations

import pytest

from tests.support.batches import section
from tests.support.dense import STOCK, dense
from tests.support.engine import ROOT
from tests.support.hybrid import started, with_log
from tests.support.near_ties import assert_only_near_ties, near_tie_share

pytestmark = [pytest.mark.e2e, pytest.mark.full]

DRAFTER = "Eagle3EagleExtLlamaForCausalLM"


@pytest.mark.parametrize(
    ("runner", "name"),
    [
        pytest.param("v1", "postnorm", marks=pytest.mark.long),
        pytest.param("v1", "native", marks=pytest.mark.long),
        pytest.param("v2", "postnorm", marks=[pytest.mark.v2, pytest.mark.long]),
    ],
)
def test_greedy_text_is_that_without_a_draft(plain, runner, name, request):
    drafted = request.getfixturevalue(runner)[0][name]["tokens"]
    count = len(drafted)
    gaps = assert_only_near_ties(plain, drafted, f"{name} on {runner}")
    assert len(gaps) <= near_tie_share(0.1) * count


@pytest.mark.long
@pytest.mark.v2
def test_log_of_v2_names_aux_layers_rule_and_drafter_once(v2):
    """V1's: test_in_float32.py."""
    log = section(v2[1], "postnorm")
    lines = [line for line in log.splitlines() if "the inputs of target layers" in line]
    assert len(lines) == 1
    for words in (
        "[2, 4, 6, 8, 10] of 12",
        "the input of layer id + 1",
        DRAFTER,
        "fc_norm, norm_output",
    ):
        assert words in lines[0]


def test_log_warns_of_default_aux_layers(v1):
    lines = section(v1[1], "native").splitlines()
    assert len([line for line in lines if "the inputs of target layers [2, 6, 9]" in line]) == 1
    (warning,) = (line for line in lines if "[2, 6, 9] is taken, EAGLE-3's default" in line)
    assert "WARNING" in warning


@pytest.mark.long
def test_stock_vllm_drafts_the_same_from_the_native_pair(v1, prompts):
    """The package adds nothing to a draft that vLLM serves rightly, and without it nothing is left."""
    stock, log = with_log([dense("native", "native", prompts=prompts[:40])], **STOCK)
    assert "the inputs of target layers" not in log
    assert "EagleExt" not in log
    assert_same(stock["native"], v1[0]["native"])


def assert_same(stock, ours):
    for part in ("tokens", "drafts", "counters"):
        assert stock[part] == ours[part]
    assert ours["counters"]["spec_decode_num_drafts"] > 0


@pytest.mark.long
@pytest.mark.v2
def test_stock_vllm_drafts_the_same_on_v2(prompts):
    few = [dense("native", "native", prompts=prompts[:10], max_tokens=32, concurrency=5)]
    assert_same(started(few, "v2", **STOCK)["native"], started(few, "v2")["native"])


def test_a_run_without_a_draft_hears_nothing_of_the_package(plain, prompts):
    results, log = with_log([dense("plain", prompts=prompts[:30], logprobs=5)])
    assert "eagle" not in log.replace(str(ROOT), "").lower()
    for part in ("tokens", "logprobs"):
        assert results["plain"][part] == plain[part][:30]
