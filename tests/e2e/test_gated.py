"""The gated pair: engine against reference, and the negative controls of this proof."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.e2e.conftest import POSTNORM_AUX_LAYERS, K
from tests.e2e.test_acceptance import assert_same_drafter, compare
from tests.support.engine import TINY, EngineRun, has_gpu, run_engine
from tests.support.near_ties import NEAR_TIE_GAP, near_tie_gaps, near_tie_share
from vllm_eagle_ext.measure.reference.eagle3 import Eagle3Reference

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture(scope="module")
def v1_comparison(v1_gated, target, gated_reference, prompts):
    return compare(v1_gated, target, gated_reference, POSTNORM_AUX_LAYERS, prompts)


def test_on_v1(v1_comparison):
    assert_same_drafter(v1_comparison, drafts=2000, bound=0.02)


@pytest.mark.v2
def test_on_v2(v2_gated, target, gated_reference, prompts):
    comparison = compare(v2_gated, target, gated_reference, POSTNORM_AUX_LAYERS, prompts)
    assert_same_drafter(comparison, drafts=300, bound=0.05)


def test_texts_are_those_without_a_draft(v1_gated, plain, prompts):
    """Up to near-ties between batch shapes, as for the other pairs; how many depends on the CPU."""
    count = len(prompts)
    gaps = near_tie_gaps(plain.outputs[:count], plain.logprobs[:count], v1_gated.outputs)
    print(f"\n{len(gaps)} of {count} texts diverge, near-tie gaps {sorted(gaps)}")
    assert max(gaps, default=0.0) <= NEAR_TIE_GAP
    assert len(gaps) <= near_tie_share(0.03) * count


def test_log_names_the_gate(v1_gated):
    said = " ".join(v1_gated.log.split())
    assert "gate: elementwise, in q_proj, interleaved (gate_layout)" in said


class Silu(Eagle3Reference):
    def gate_activation(self, gate):
        return torch.nn.functional.silu(gate)


class BeforeAttention(Eagle3Reference):
    """The query is gated, and what attention makes of it is not."""

    def query_and_gate(self, w, u):
        query, gate = super().query_and_gate(w, u)
        return query * torch.sigmoid(gate), None


CONTROLS = {
    "gate dropped": lambda reference: reference.with_gate_layout(None),
    "wrong layout": lambda reference: reference.with_gate_layout("concat"),
    "silu for sigmoid": lambda reference: Silu(**vars(reference)),
    "gate before attention": lambda reference: BeforeAttention(**vars(reference)),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_negative_control(name, v1_gated, target, gated_reference, prompts):
    control = CONTROLS[name](gated_reference)
    some = replace(v1_gated, outputs=v1_gated.outputs[:30], drafts=v1_gated.drafts[:30])
    comparison = compare(some, target, control, POSTNORM_AUX_LAYERS, prompts)
    assert min(comparison.equal_share) < 0.90


@pytest.mark.long
def test_compiled(target, gated_reference, prompts):
    """Under torch.compile the gated product is fused into its neighbours, and drafts the same."""
    run = EngineRun(
        prompts=prompts[:30], max_tokens=64, draft=TINY / "gated", k=K, eager=False, record_drafts=True
    )
    result = run_engine(run)
    comparison = compare(result, target, gated_reference, POSTNORM_AUX_LAYERS, prompts)
    assert_same_drafter(comparison, drafts=400, bound=0.02)


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="CUDA graphs need an NVIDIA GPU")
@pytest.mark.long
def test_full_cuda_graphs(target, gated_reference, prompts):
    run = EngineRun(
        prompts=prompts[:30],
        max_tokens=64,
        draft=TINY / "gated",
        k=K,
        runner="v2",
        eager=False,
        record_drafts=True,
        engine_args={"compilation_config": {"cudagraph_mode": "FULL"}},
    )
    result = run_engine(run)
    comparison = compare(result, target, gated_reference, POSTNORM_AUX_LAYERS, prompts)
    assert_same_drafter(comparison, drafts=400, bound=0.05)
