"""The pairs of the dense target in float32: a draft changes no text, and drafts as its reference does.

The part of `make test` for post-norm, native and gated drafts and for the V2 runner. Figures in bf16,
compiled engines and stock vLLM beside: test_in_bf16.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.batches import section
from tests.support.dense import NATIVE_AUX_LAYERS, POSTNORM_AUX_LAYERS, K
from tests.support.hybrid import assert_requests_add_up
from tests.support.placed_drafts import pairs
from tests.support.replay import Comparison, compare
from vllm_eagle_ext.measure.reference.eagle3 import Eagle3Reference

pytestmark = pytest.mark.e2e

FEW = 12  # texts, which the reference reads in a few seconds
AUX_LAYERS = {
    "postnorm": POSTNORM_AUX_LAYERS,
    "native": NATIVE_AUX_LAYERS,
    "gated": POSTNORM_AUX_LAYERS,
}


@pytest.mark.promise("native drafts: text", id="native")
@pytest.mark.promise("gated drafts: text", id="gated")
@pytest.mark.promise(
    "post-norm drafts that read five layers: the text is that without a draft", id="postnorm"
)
@pytest.mark.parametrize("name", ["postnorm", "native", "gated"])
def test_every_float32_text_is_that_without_a_draft(in_float32, name):
    results, _ = in_float32
    assert results[name]["counters"]["spec_decode_num_accepted_tokens"] > 1000
    assert results[name]["tokens"] == results["plain"]["tokens"]
    assert_requests_add_up(results[name])


@pytest.fixture
def compared(in_float32, target, prompts, request):
    """On some of the texts; engine and reference both round in float32."""

    def compare_some(name: str, layer_ids: tuple[int, ...], changed=lambda same: same) -> Comparison:
        result, reference = in_float32[0][name], changed(request.getfixturevalue(f"{name}_reference"))
        tally = compare(result, target, reference, layer_ids, prompts[:FEW], K)
        assert tally.drafts >= 15 * FEW
        return tally

    return compare_some


@pytest.mark.promise("native drafts: drafts", id="native")
@pytest.mark.promise("gated drafts: drafts", id="gated")
@pytest.mark.promise("they draft as they were trained to", id="postnorm")
@pytest.mark.parametrize("name", AUX_LAYERS)
def test_float32_drafts_are_those_of_the_reference(name, in_float32, compared):
    (worker,) = in_float32[0][name]["workers"]
    assert worker["layer_ids"] == list(AUX_LAYERS[name])
    assert min(compared(name, AUX_LAYERS[name]).equal_share) == 1


class Silu(Eagle3Reference):
    def gate_activation(self, gate):
        return torch.nn.functional.silu(gate)


class BeforeAttention(Eagle3Reference):
    """The query is gated, and what attention makes of it is not."""

    def query_and_gate(self, w, u):
        query, gate = super().query_and_gate(w, u)
        return query * torch.sigmoid(gate), None


def with_permuted_norms(right):
    norms = [right.weights[f"fc_norm.{number}.weight"] for number in (1, 2, 3, 4, 0)]
    permuted = {f"fc_norm.{number}.weight": norm for number, norm in enumerate(norms)}
    return replace(right, weights={**right.weights, **permuted})


def without_gate(right):
    """q_proj's first rows are taken for the query."""
    name = "layers.0.self_attn.q_proj.weight"
    kept = right.weights[name][: right.heads * right.head_dim]
    return replace(right, gate_layout=None, weights={**right.weights, name: kept})


# Each would pass for the engine's drafter if this proof could not fail.
CONTROLS = {
    "pre-norm feedback": ("postnorm", lambda right: replace(right, norm_output=False)),
    "norms permuted": ("postnorm", with_permuted_norms),
    "gate dropped": ("gated", without_gate),
    "wrong layout": ("gated", lambda right: replace(right, gate_layout="concat")),
    "silu for sigmoid": ("gated", lambda right: Silu(**vars(right))),
    "gate before attention": ("gated", lambda right: BeforeAttention(**vars(right))),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_another_reference_drafts_otherwise(compared, control):
    name, changed = CONTROLS[control]
    share = compared(name, AUX_LAYERS[name], changed).equal_share
    print(f"\n{control}: equal per position {share}")
    assert min(share) < 0.90


def test_a_reference_that_reads_other_layers_drafts_otherwise(compared):
    shifted = tuple(layer_id - 1 for layer_id in POSTNORM_AUX_LAYERS)
    assert min(compared("postnorm", shifted).equal_share) < 0.95


@pytest.mark.promise("the log says once which layers are read, why, and what serves")
def test_log_names_rule_norms_and_drafter_once(in_float32):
    _, log = in_float32
    lines = [line for line in log.splitlines() if "the inputs of target layers" in line]
    assert len(lines) == 3
    for words in (
        "[2, 4, 6, 8, 10] of 12",
        "the input of layer id + 1",
        "fc_norm, norm_output",
        "Eagle3EagleExtLlamaForCausalLM",
    ):
        assert words in lines[0]


def test_log_names_the_gate_and_warns_of_default_layers(in_float32):
    gated, native = (section(in_float32[1], name) for name in ("gated", "native"))
    assert "gate: elementwise, in q_proj, interleaved (gate_layout)" in " ".join(gated.split())
    (warning,) = (
        line for line in native.splitlines() if "[2, 6, 9] is taken, EAGLE-3's default" in line
    )
    assert "WARNING" in warning


@pytest.fixture(scope="module")
def runners(in_float32, v2_in_float32):
    """What V1 and V2 said of the same prompts, cut to the length of V2's texts."""
    v2, _ = v2_in_float32
    v1 = in_float32[0]["postnorm"]
    cut = [text[: len(short)] for text, short in zip(v1["tokens"], v2["tokens"], strict=False)]
    return {"tokens": cut, "drafts": v1["drafts"][: len(cut)]}, v2


@pytest.mark.promise("the V2 runner: text")
@pytest.mark.v2
def test_texts_are_those_without_a_draft_on_v2(in_float32, v2_in_float32):
    v2, log = v2_in_float32
    plain = in_float32[0]["plain"]["tokens"]
    assert v2["tokens"] == [plain[i][: len(text)] for i, text in enumerate(v2["tokens"])]
    assert v2["workers"][0]["layer_ids"] == list(POSTNORM_AUX_LAYERS)
    assert log.count("the inputs of target layers [2, 4, 6, 8, 10] of 12") == 1


@pytest.mark.promise("the V2 runner: drafts")
@pytest.mark.v2
def test_drafts_on_v2_are_those_of_v1(runners):
    drafts = list(pairs(*runners))
    print(f"\n{len(drafts)} drafts compared")
    assert len(drafts) >= 12
    assert all(ours == theirs for ours, theirs in drafts)
