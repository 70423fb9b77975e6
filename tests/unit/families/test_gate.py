"""Gated attention at module level: every layout and place of the gate, against the reference."""

from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import HEAD_DIM, HEADS, HIDDEN
from tests.support.drafting import (
    BOUND,
    BOUND_QUANTISED,
    difference,
    load,
    module_logits,
    reference_logits,
)
from tests.support.drafts import Draft, valid_draft
from vllm_eagle_ext.errors import UnsupportedDraftError
from vllm_eagle_ext.families.parts.gate_rows import GatePlan, runtime_rows, with_gates

BASES = (
    "native",
    "post-norm",
    "qwen3",
    "norm_before_fc",
    "speculators",
    "p-eagle",
)  # the last: two layers
WIDTH = {"elementwise": HEAD_DIM, "headwise": 1}


def q_name(draft: Draft) -> str:
    return next(name for name in draft.tensors if name.endswith("q_proj.weight"))


def gated_draft(base: str, kind: str, place: str, gates: float | None = None) -> Draft:
    """place: the layout of q_proj's rows, or the name of a tensor of the gate's own."""
    torch.manual_seed(3)
    draft, width = valid_draft(base), WIDTH[kind]
    for name in [name for name in draft.tensors if name.endswith("q_proj.weight")]:
        columns = draft.tensors[name].shape[1]
        query = draft.tensors[name].view(HEADS, HEAD_DIM, -1)
        gate = torch.randn(HEADS, width, columns) * 2 * columns**-0.5
        gate = (gate if gates is None else torch.full_like(gate, gates)).bfloat16()
        if place == "interleaved":
            draft.tensors[name] = torch.cat([query, gate], dim=1).flatten(0, 1)
        elif place == "concat":
            draft.tensors[name] = torch.cat([query.flatten(0, 1), gate.flatten(0, 1)])
        else:
            draft.tensors[name.replace("q_proj", place)] = gate.flatten(0, 1)
    if place in ("interleaved", "concat"):
        draft.config["gate_layout"] = place
    return draft


def logits(tmp_path, draft: Draft, **options):
    drafter, layer_ids, path, probe = load(tmp_path, draft, **options)
    mine = module_logits(drafter, "gated", layer_ids, probe)
    return mine, reference_logits(path, "gated", layer_ids, probe)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("kind", ["elementwise", "headwise"])
@pytest.mark.parametrize("place", ["interleaved", "concat", "gate", "g_proj", "gate_proj"])
def test_logits_equal_the_references(tmp_path, base, kind, place):
    assert difference(*logits(tmp_path, gated_draft(base, kind, place))) < BOUND


def test_layouts_are_not_interchangeable(tmp_path):
    draft = gated_draft("post-norm", "elementwise", "interleaved")
    right, _ = logits(tmp_path / "right", draft)
    wrong, _ = logits(tmp_path / "wrong", draft, gate_layout="concat")
    assert difference(wrong, right) > 0.1


def test_the_option_wins_over_the_config(tmp_path):
    draft = gated_draft("post-norm", "elementwise", "concat")
    right, _ = logits(tmp_path / "right", draft)
    draft.config["gate_layout"] = "interleaved"
    corrected, _ = logits(tmp_path / "corrected", draft, gate_layout="concat")
    assert torch.equal(corrected, right)


@pytest.mark.parametrize("kind", ["elementwise", "headwise"])
def test_open_gates_reproduce_the_ungated_drafter(tmp_path, kind):
    """A bias is what makes a gate large whatever its input is."""
    ungated = valid_draft("native")
    ungated.config["attention_bias"] = True
    biases = {"q": HEADS * HEAD_DIM, "k": HEAD_DIM, "v": HEAD_DIM, "o": HIDDEN}
    for name, rows in biases.items():
        ungated.tensors[f"midlayer.self_attn.{name}_proj.bias"] = torch.zeros(rows).bfloat16()
    plain, _ = logits(tmp_path / "plain", ungated)
    draft = gated_draft("native", kind, "concat", gates=0.0)
    draft.config["attention_bias"] = True
    for name in biases:
        key = f"midlayer.self_attn.{name}_proj.bias"
        draft.tensors[key] = ungated.tensors[key].clone()
    open_gate = torch.full((HEADS * WIDTH[kind],), 40.0).bfloat16()
    key = "midlayer.self_attn.q_proj.bias"
    draft.tensors[key] = torch.cat([draft.tensors[key], open_gate])
    mine, _ = logits(tmp_path / "gated", draft)
    assert difference(mine, plain) < 1e-5


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("kind", ["elementwise", "headwise"])
def test_each_rank_gets_the_queries_and_gates_of_its_heads(ranks, kind):
    heads, d, width = 8, 4, {"elementwise": 4, "headwise": 1}[kind]
    query = torch.arange(heads * d).view(heads, d, 1)
    gate = 1000 + torch.arange(heads * width).view(heads, width, 1)
    for rank, rows in enumerate(runtime_rows(query, gate, ranks).chunk(ranks)):
        mine = slice(rank * heads // ranks, (rank + 1) * heads // ranks)
        assert torch.equal(rows[: heads * d // ranks], query[mine].flatten(0, 1))
        assert torch.equal(rows[heads * d // ranks :], gate[mine].expand(-1, d, -1).flatten(0, 1))


class TestQuantised:
    """Rows of low-precision weights move with the scales of their rows."""

    plan = GatePlan("elementwise", "q_proj", "interleaved", heads=4, head_dim=2)
    name = "layers.0.self_attn.q_proj"

    def moved(self, suffix, tensor, plan=None):
        ((_, new),) = with_gates([(f"{self.name}.{suffix}", tensor)], plan or self.plan, 2)
        return new

    def test_fp8_rows_and_their_scales(self):
        rows = torch.arange(16.0)[:, None].expand(-1, 3)
        weight = self.moved("weight", rows.to(torch.float8_e4m3fn))
        assert weight.dtype == torch.float8_e4m3fn
        scales = self.moved("weight_scale", torch.arange(16.0)[:, None])
        assert torch.equal(weight.float()[:, :1], scales)
        assert scales.flatten().tolist() == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]

    def test_one_scale_for_all_rows(self):
        assert self.moved("weight_scale", torch.tensor(0.5)) == 0.5

    def test_scales_of_whole_blocks_move_as_rows_do(self):
        scales = self.moved("weight_scale_inv", torch.arange(8.0)[:, None])  # of two rows each
        assert scales.flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]

    def test_blocks_that_straddle_query_and_gate_are_refused(self):
        for blocks in (3, 4):  # of no whole number of rows, and of a head's query and gate together
            with pytest.raises(UnsupportedDraftError, match="whole blocks"):
                self.moved("weight_scale_inv", torch.ones(blocks, 2))

    @pytest.mark.parametrize("suffix", ["weight_shape", "weight_g_idx", "input_scale"])
    def test_what_has_no_rows_stays_as_it_is(self, suffix):
        tensor = torch.arange(16)
        assert torch.equal(self.moved(suffix, tensor), tensor)


@pytest.mark.parametrize("layout", ["interleaved", "concat"])
def test_quantised_gated_draft(tmp_path, layout):
    """Eight-bit weights with a scale per row, through vLLM's own quantisation."""
    draft = valid_draft("quantised")
    name = q_name(draft)
    gate = torch.randn(HEADS * HEAD_DIM, 2 * HIDDEN) * (HIDDEN / 2) ** -0.5
    scale = gate.abs().amax(dim=1, keepdim=True) / 127
    parts = {name: (gate / scale).round().to(torch.int8), f"{name}_scale": scale}
    for key, rows in parts.items():
        query = draft.tensors[key]
        if layout == "concat":
            draft.tensors[key] = torch.cat([query, rows])
        else:
            heads = [part.unflatten(0, (HEADS, HEAD_DIM)) for part in (query, rows)]
            draft.tensors[key] = torch.cat(heads, dim=1).flatten(0, 1)
    draft.config["gate_layout"] = layout
    assert difference(*logits(tmp_path, draft)) < BOUND_QUANTISED


def test_a_gate_without_its_query_is_refused():
    plan = GatePlan("elementwise", "g_proj", "interleaved", heads=4, head_dim=2)
    with pytest.raises(UnsupportedDraftError, match="g_proj.weight"):
        list(with_gates([("layers.0.self_attn.g_proj.weight", torch.ones(8, 2))], plan, 1))
