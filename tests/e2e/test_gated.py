"""The gated pair: engine against reference, and the negative controls of this proof."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.batches import section
from tests.support.dense import POSTNORM_AUX_LAYERS, K, dense
from tests.support.engine import has_gpu
from tests.support.hybrid import started
from tests.support.near_ties import assert_only_near_ties, near_tie_share
from tests.support.replay import assert_same_drafter, compare
from vllm_eagle_ext.measure.reference.eagle3 import Eagle3Reference

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture(scope="module")
def v1_comparison(v1, target, gated_reference, prompts):
    return compare(v1[0]["gated"], target, gated_reference, POSTNORM_AUX_LAYERS, prompts, K)


def test_on_v1(v1_comparison):
    assert_same_drafter(v1_comparison, drafts=2000, bound=0.02)


@pytest.mark.v2
@pytest.mark.long
def test_on_v2(v2, target, gated_reference, prompts):
    comparison = compare(v2[0]["gated"], target, gated_reference, POSTNORM_AUX_LAYERS, prompts, K)
    assert_same_drafter(comparison, drafts=300, bound=0.05)


@pytest.mark.long
def test_texts_are_those_without_a_draft(v1, plain, prompts):
    """Up to near-ties between batch shapes, as for the other pairs; how many depends on the CPU."""
    count = len(prompts)
    gaps = assert_only_near_ties(plain, v1[0]["gated"]["tokens"], "gated")
    assert len(gaps) <= near_tie_share(0.03) * count


def test_log_names_the_gate(v1):
    said = " ".join(section(v1[1], "gated").split())
    assert "gate: elementwise, in q_proj, interleaved (gate_layout)" in said


class Silu(Eagle3Reference):
    def gate_activation(self, gate):
        return torch.nn.functional.silu(gate)


class BeforeAttention(Eagle3Reference):
    """The query is gated, and what attention makes of it is not."""

    def query_and_gate(self, w, u):
        query, gate = super().query_and_gate(w, u)
        return query * torch.sigmoid(gate), None


def without_gate(reference):
    """q_proj's first rows are taken for the query."""
    name = "layers.0.self_attn.q_proj.weight"
    kept = reference.weights[name][: reference.heads * reference.head_dim]
    return replace(reference, gate_layout=None, weights={**reference.weights, name: kept})


CONTROLS = {
    "gate dropped": without_gate,
    "wrong layout": lambda reference: replace(reference, gate_layout="concat"),
    "silu for sigmoid": lambda reference: Silu(**vars(reference)),
    "gate before attention": lambda reference: BeforeAttention(**vars(reference)),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_negative_control(name, v1, target, gated_reference, prompts):
    control = CONTROLS[name](gated_reference)
    layer_ids = POSTNORM_AUX_LAYERS
    comparison = compare(v1[0]["gated"], target, control, layer_ids, prompts[:30], K)
    assert min(comparison.equal_share) < 0.90


@pytest.mark.long
def test_compiled(target, gated_reference, prompts):
    """Under torch.compile the gated product is fused into its neighbours, and drafts the same."""
    compiled = dense("gated", "gated", prompts=prompts[:30], engine_args={"enforce_eager": False})
    result = started([compiled])["gated"]
    comparison = compare(result, target, gated_reference, POSTNORM_AUX_LAYERS, prompts, K)
    assert_same_drafter(comparison, drafts=400, bound=0.02)


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="CUDA graphs need an NVIDIA GPU")
@pytest.mark.long
def test_full_cuda_graphs(target, gated_reference, prompts):
    graphs = {"enforce_eager": False, "compilation_config": {"cudagraph_mode": "FULL"}}
    run = dense("gated", "gated", prompts=prompts[:30], engine_args=graphs)
    result = started([run], "v2")["gated"]
    comparison = compare(result, target, gated_reference, POSTNORM_AUX_LAYERS, prompts, K)
    assert_same_drafter(comparison, drafts=400, bound=0.05)
