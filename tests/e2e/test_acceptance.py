"""Engine against reference: its own greedy texts, replayed through the plain PyTorch drafter."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import NATIVE_AUX_LAYERS, POSTNORM_AUX_LAYERS, K
from tests.support.replay import replay

pytestmark = [pytest.mark.e2e, pytest.mark.full]

EQUAL_IDS = 0.97
MOST_NEAR_TIES = 0.25  # of the drafts: the equal shares rest on the others


def compare(result, target, reference, layer_ids, prompts):
    count = len(result.outputs)
    comparison = replay(target, reference, layer_ids, prompts[:count], result.outputs, result.drafts, K)
    print("", *comparison.lines(), sep="\n")
    assert max(comparison.tie_share) <= MOST_NEAR_TIES
    return comparison


def assert_same_drafter(comparison, *, drafts, bound):
    assert comparison.drafts >= drafts
    for engine, reference in zip(
        comparison.engine_acceptance, comparison.reference_acceptance, strict=True
    ):
        assert abs(engine - reference) <= bound
    assert min(comparison.equal_share) >= EQUAL_IDS


@pytest.fixture(scope="module")
def v1_comparison(v1_postnorm, target, postnorm_reference, prompts):
    return compare(v1_postnorm, target, postnorm_reference, POSTNORM_AUX_LAYERS, prompts)


def test_postnorm_on_v1(v1_comparison):
    assert_same_drafter(v1_comparison, drafts=2000, bound=0.02)


def test_recorded_drafts_are_those_that_vllm_counts(v1_postnorm, v1_comparison):
    for counted, replayed in zip(v1_postnorm.acceptance, v1_comparison.engine_acceptance, strict=True):
        assert counted == pytest.approx(replayed, abs=0.02)


def test_native_on_v1(v1_native, target, native_reference, prompts):
    comparison = compare(v1_native, target, native_reference, NATIVE_AUX_LAYERS, prompts)
    assert_same_drafter(comparison, drafts=600, bound=0.02)


@pytest.mark.v2
def test_postnorm_on_v2(v2_postnorm, target, postnorm_reference, prompts):
    comparison = compare(v2_postnorm, target, postnorm_reference, POSTNORM_AUX_LAYERS, prompts)
    assert_same_drafter(comparison, drafts=300, bound=0.05)


def test_postnorm_is_worth_drafting_for(v1_postnorm):
    assert 1 + sum(v1_postnorm.acceptance) >= 2.4


class TestNegativeControls:
    """Each would pass for the engine's drafter if this proof could not fail."""

    def falls(self, result, target, reference, layer_ids, prompts):
        comparison = compare(result, target, reference, layer_ids, prompts)
        assert min(comparison.equal_share) < 0.90

    def test_pre_norm_feedback(self, v1_postnorm, target, postnorm_reference, prompts):
        reference = postnorm_reference.with_pre_norm_feedback()
        self.falls(v1_postnorm, target, reference, POSTNORM_AUX_LAYERS, prompts)

    def test_aux_layers_shifted_by_one(self, v1_postnorm, target, postnorm_reference, prompts):
        shifted = tuple(b - 1 for b in POSTNORM_AUX_LAYERS)
        self.falls(v1_postnorm, target, postnorm_reference, shifted, prompts)

    def test_fc_norms_permuted(self, v1_postnorm, target, postnorm_reference, prompts):
        reference = postnorm_reference.with_permuted_fc_norms([1, 2, 3, 4, 0])
        self.falls(v1_postnorm, target, reference, POSTNORM_AUX_LAYERS, prompts)
