"""The builder on staged and padded batches, as full CUDA graphs have them, and on mixed ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.engine import has_gpu

if has_gpu():
    pytest.skip("the builder's CPU tensors", allow_module_level=True)

from vllm.v1.attention.backends.gdn_attn import GDNAttentionBackend

from tests.unit.replay.builders import OFF_FOR_MANY, K, Ops, batch, block_table, build, builder, evenly
from vllm_eagle_ext.replay.layer import ReplayBackend
from vllm_eagle_ext.replay.metadata import ReplayMetadata


@pytest.mark.parametrize("mode", ["none", "align"])
def test_a_padded_graph(mode):
    made = builder(mode, graphs=True)
    common = batch([4, 4, 4, 4, 4, 0, 0, 0], [20, 20, 15, 12, 30, 0, 0, 0], mode)
    metadata = build(made, common, [3] * 5 + [-1] * 3)
    step = metadata.step
    assert step.batch.state_blocks.tolist()[5:] == [0, 0, 0]
    assert (step.batch.state_blocks[:5] > 0).all()
    assert step.batch.starts.tolist() == [0, 4, 8, 12, 16, 20, 20, 20, 20]
    assert step.rows is None
    assert len(step.ones) == 8
    # A graph reads these addresses when it is replayed.
    again = build(made, common, [3] * 5 + [-1] * 3).step
    assert again.batch.state_blocks.data_ptr() == step.batch.state_blocks.data_ptr()
    assert step.batch.starts.data_ptr() == made.spec_query_start_loc.data_ptr()
    sampled = torch.tensor([1, 2, 4, 0, 3], dtype=torch.int32)  # as long as there are requests
    after = metadata.commit_recoverssm_state(sampled)
    assert made.groups_commit.seen == [(step, sampled)]
    if mode == "align":
        # A row that samples nothing still commits its first token.
        assert (after.num_computed_tokens + sampled).tolist() == [21, 22, 19, 13, 33]
        assert after.num_spec_decodes == 5


@pytest.mark.parametrize("mode", ["none", "align"])
def test_a_mixed_batch_is_cut_in_two(mode):
    made = builder(mode, graphs=False)
    common = batch([4, 7, 2, 1], [20, 0, 18, 16], mode)
    metadata = build(made, common, [3, -1, 1, 0])
    assert isinstance(metadata, ReplayMetadata)
    step = metadata.step
    assert step.rows.tolist() == [0, 1, 2, 3, 11, 12, 13]
    assert step.other_rows.tolist() == list(range(4, 11))
    assert step.places.indices.tolist() == [0, 2, 3]
    assert step.batch.starts.tolist() == [0, 4, 6, 7]
    # What the parent's code sees: one prompt of seven tokens, nothing speculative.
    assert (metadata.num_prefills, metadata.num_decodes, metadata.num_actual_tokens) == (1, 0, 7)
    assert metadata.spec_sequence_masks is None
    assert metadata.prefill_query_start_loc.tolist() == [0, 7]
    assert metadata.num_spec_decodes == 0


def test_a_batch_without_verify_rows_is_vllms_own():
    made = builder("none", graphs=False)
    made.pending = "an older step"
    metadata = build(made, batch([7, 5], [0, 0], "none"), [-1, -1])
    assert not isinstance(metadata, ReplayMetadata)
    assert made.pending is None


@pytest.mark.parametrize("graphs", [False, True])
def test_a_batch_without_a_draft_decodes_plainly(graphs):
    """Its requests' states stand in their blocks: nothing is verified, nothing to commit."""
    made = builder("none", graphs=graphs, schedule=OFF_FOR_MANY)
    metadata = build(made, batch([1, 1, 0], [20, 30, 0], "none"), [0, 0, -1])
    assert not isinstance(metadata, ReplayMetadata)
    assert made.pending is None
    assert (metadata.num_decodes, metadata.num_prefills, metadata.num_spec_decodes) == (3, 0, 0)
    blocks = block_table(0, "none")[:2, 0].tolist()
    assert metadata.non_spec_state_indices_tensor[:2].tolist() == blocks


def test_rows_are_verified_where_no_plain_decode_can_step_their_states():
    ops = Ops()
    ops.can_decode_in_place = False
    made = builder("none", graphs=False, ops=ops, schedule=OFF_FOR_MANY)
    assert build(made, batch([1], [20], "none"), [0]).step.num_rows == 1
    beside_a_prompt = build(made, batch([1, 6], [20, 30], "none"), [0, -1])
    assert beside_a_prompt.step.num_rows == 1
    assert not isinstance(build(made, batch([6], [6], "none"), [-1]), ReplayMetadata)


def test_one_draft_makes_all_decodes_verify_rows():
    made = builder("none", graphs=False, schedule=OFF_FOR_MANY)
    step = build(made, batch([1, 2], [20, 30], "none"), [0, 1]).step
    assert step.num_rows == 3
    assert step.batch.starts.tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("mode", "adaptive", "schedule"),
    [("align", False, OFF_FOR_MANY), ("none", True, OFF_FOR_MANY), ("none", False, None)],
)
def test_rows_without_a_draft_are_verified(mode, adaptive, schedule):
    """Where the commit alone moves a state on at a block's end; where a graph that is captured without
    drafts is replayed with any number of them; and where they are so rare that no graph holds them."""
    made = builder(mode, graphs=adaptive, adaptive=adaptive, schedule=schedule)
    step = build(made, batch([1, 1], [20, 30], mode), [0, 0]).step
    assert step.num_rows == 2
    assert step.batch.starts.tolist() == [0, 1, 2]


# Rows of the device and of the host, tokens before, drafts that were scheduled, those that were kept.
TRIMMED = {
    "verify rows": ([4, 1, 3, 1], [3, 2, 2, 2], [20, 15, 12, 30], [3, 3, 3, 3], [3, 0, 2, 0]),
    "padded": ([1, 4, 1, 0], [2, 2, 2, 0], [20, 15, 12, 0], [3, 3, 3, -1], [0, 3, 0, -1]),
    "beside prompts": ([4, 1, 7, 2], [3, 2, 7, 2], [20, 15, 0, 30], [3, 3, -1, -1], [3, 0, -1, -1]),
}  # fmt: skip


def same(left: Any, right: Any) -> bool:
    """Of two values of any kind, tensors by content."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return same(tuple(left.items()), tuple(right.items()))
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.mark.promise("a step's rows are those of the device, whatever the host knows")
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("mode", ["none", "align"])
@pytest.mark.parametrize("case", TRIMMED)
def test_rows_are_those_of_the_device(case, mode, graphs):
    """A batch that was trimmed on the device gives the step of one that was trimmed before."""
    rows, on_host, computed, scheduled, kept = TRIMMED[case]
    assert rows != on_host
    steps, metadata = [], []
    for common, drafts in (
        (evenly(batch(rows, computed, mode), on_host), scheduled),
        (batch(rows, computed, mode), kept),
    ):
        meta = build(builder(mode, graphs=graphs), common, drafts)
        metadata.append({
            name: value for name, value in vars(meta).items()
            if name not in ("step", "groups", "groups_commit", "uniform_spec_sequence_length")
        })  # fmt: skip
        steps.append(meta.step._asdict() | {"built": None})
    for trimmed, by_hand in (steps, metadata):
        assert trimmed.keys() == by_hand.keys()
        for name in by_hand:
            assert same(trimmed[name], by_hand[name]), name
    assert steps[0]["batch"].starts.tolist() != torch.tensor([0, *on_host]).cumsum(0).tolist()


@pytest.mark.parametrize("mode", ["none", "align"])
def test_a_graph_captured_on_one_row_each_serves_any_widths(mode):
    """vLLM captures graphs of varying widths with as many requests as tokens."""
    made = builder(mode, graphs=True, adaptive=True)
    captured = made.build_for_cudagraph_capture(batch([1] * 8, [20] * 8, mode)).step
    trimmed = evenly(
        batch([4, 1, 2, 1, 0, 0, 0, 0], [20, 15, 12, 30, 0, 0, 0, 0], mode), [2] * 4 + [0] * 4
    )
    step = build(made, trimmed, [3] * 4 + [-1] * 4).step
    assert step.batch.starts.tolist() == [0, 4, 5, 7, 8, 8, 8, 8, 8]
    # What a launch is made of: tensors in the same places and of the same sizes, and T.
    for part in ("state_blocks", "starts"):
        mine, theirs = getattr(step.batch, part), getattr(captured.batch, part)
        assert (mine.data_ptr(), mine.shape, mine.stride()) == (
            theirs.data_ptr(), theirs.shape, theirs.stride()
        )  # fmt: skip
    assert step.ones.data_ptr() == captured.ones.data_ptr()
    for part in ("num_rows", "rows_per_request", "rows"):
        assert getattr(step, part) == getattr(captured, part)


def test_vllm_is_told_so():
    """Its own backend for such layers says neither."""
    config = SimpleNamespace(num_speculative_tokens=K)
    bounds = [
        each.get_builder_cls().get_varlen_cudagraph_max_query_len(config, None)
        for each in (ReplayBackend, GDNAttentionBackend)
    ]
    assert bounds == [1 + K, None]
    flags = [
        each.supports_device_cpu_query_lens_mismatch() for each in (ReplayBackend, GDNAttentionBackend)
    ]
    assert flags == [True, False]
