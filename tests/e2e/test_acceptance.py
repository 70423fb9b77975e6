"""Engine against reference: its own greedy texts, replayed through the plain PyTorch drafter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.dense import NATIVE_AUX_LAYERS, POSTNORM_AUX_LAYERS, K
from tests.support.hybrid import acceptance, assert_requests_add_up
from tests.support.replay import assert_same_drafter, compare

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture(scope="module")
def v1_comparison(v1, target, postnorm_reference, prompts):
    return compare(v1[0]["postnorm"], target, postnorm_reference, POSTNORM_AUX_LAYERS, prompts, K)


def test_postnorm_on_v1(v1_comparison):
    assert_same_drafter(v1_comparison, drafts=2000, bound=0.02)


def test_recorded_drafts_are_those_that_vllm_counts(v1, v1_comparison):
    for counted, replayed in zip(
        acceptance(v1[0]["postnorm"]), v1_comparison.engine_acceptance, strict=True
    ):
        assert counted == pytest.approx(replayed, abs=0.02)


@pytest.mark.parametrize("name", ["postnorm", "native", "gated"])
def test_requests_add_up_to_what_vllm_counts(v1, name):
    assert_requests_add_up(v1[0][name])


@pytest.mark.v2
@pytest.mark.long
def test_requests_add_up_on_v2(v2):
    assert_requests_add_up(v2[0]["gated"])


def test_native_on_v1(v1, target, native_reference, prompts):
    comparison = compare(v1[0]["native"], target, native_reference, NATIVE_AUX_LAYERS, prompts, K)
    assert_same_drafter(comparison, drafts=600, bound=0.02)


@pytest.mark.v2
@pytest.mark.long
def test_postnorm_on_v2(v2, target, postnorm_reference, prompts):
    comparison = compare(v2[0]["postnorm"], target, postnorm_reference, POSTNORM_AUX_LAYERS, prompts, K)
    assert_same_drafter(comparison, drafts=300, bound=0.05)


def test_postnorm_is_worth_drafting_for(v1):
    assert 1 + sum(acceptance(v1[0]["postnorm"])) >= 2.4


class TestNegativeControls:
    """Each would pass for the engine's drafter if this proof could not fail."""

    def falls(self, v1, target, reference, layer_ids, prompts):
        comparison = compare(v1[0]["postnorm"], target, reference, layer_ids, prompts[:60], K)
        assert min(comparison.equal_share) < 0.90

    def test_pre_norm_feedback(self, v1, target, postnorm_reference, prompts):
        reference = replace(postnorm_reference, norm_output=False)
        self.falls(v1, target, reference, POSTNORM_AUX_LAYERS, prompts)

    def test_aux_layers_shifted_by_one(self, v1, target, postnorm_reference, prompts):
        shifted = tuple(b - 1 for b in POSTNORM_AUX_LAYERS)
        self.falls(v1, target, postnorm_reference, shifted, prompts)

    def test_fc_norms_permuted(self, v1, target, postnorm_reference, prompts):
        weights = dict(postnorm_reference.weights)
        norms = [weights[f"fc_norm.{number}.weight"] for number in (1, 2, 3, 4, 0)]
        weights |= {f"fc_norm.{number}.weight": norm for number, norm in enumerate(norms)}
        reference = replace(postnorm_reference, weights=weights)
        self.falls(v1, target, reference, POSTNORM_AUX_LAYERS, prompts)
