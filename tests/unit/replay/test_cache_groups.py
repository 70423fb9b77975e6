"""Metadata of many KV-cache groups: one build, one gather and one commit for all of them, and in each
the state blocks that a builder of its own would find."""

from __future__ import annotations

import pytest
import torch

from tests.support.engine import has_gpu

if has_gpu():
    pytest.skip("the builder's CPU tensors", allow_module_level=True)

from tests.unit.replay.builders import GROUPS, Ops, batch, block_table, build, builder

# Rows and computed tokens of each request, drafts as vLLM counts them: a full graph's padding, a mixed
# batch in which requests pass block boundaries, and prompts alone.
STEPS = {
    "padded": ([4, 4, 4, 0, 0], [20, 13, 30, 0, 0], [3, 3, 3, -1, -1]),
    "mixed": ([4, 7, 2, 1], [14, 0, 30, 16], [3, -1, 1, 0]),
    "prompts": ([7, 5], [0, 16], [-1, -1]),
}
SHARED = [("none", False), ("none", True), ("align", False), ("align", True)]


class Engine:
    """The builders of all groups, as vLLM's runner asks them in a step."""

    def __init__(self, mode: str, *, by_address: bool) -> None:
        self.mode, self.ops = mode, Ops(by_address=by_address)
        self.builders = [builder(mode, graphs=True, ops=self.ops) for _ in range(GROUPS)]
        self.tables = [block_table(group, mode) for group in range(GROUPS)]

    def step(self, name: str, groups: int = GROUPS):
        rows, computed, drafts = STEPS[name]
        common = batch(rows, computed, self.mode)
        first = build(self.builders[0], self.with_table(common, 0), drafts)
        later = (
            b.update_block_table(first, self.tables[group][: len(rows)], common.slot_mapping)
            for group, b in enumerate(self.builders[1:groups], 1)
        )
        return [first, *later]

    def with_table(self, common, group: int):
        return common.replace(block_table_tensor=self.tables[group][: common.num_reqs])

    def alone(self, name: str):
        """Each group's metadata of a builder that shares nothing."""
        rows, computed, drafts = STEPS[name]
        common = batch(rows, computed, self.mode)
        made = [builder(self.mode, graphs=True) for _ in self.tables]
        return [build(b, self.with_table(common, i), drafts) for i, b in enumerate(made)]


def contents(metadata) -> dict[str, object]:
    """What the layers read of it."""
    step = getattr(metadata, "step", None)
    tensors = {"state blocks": step.batch.state_blocks, "starts": step.batch.starts} if step else {}
    names = ("non_spec_state_indices_tensor", "prefill_state_indices", "prefill_query_start_loc")
    tensors |= {name: getattr(metadata, name) for name in names}
    tensors |= {"rows": step.rows, "other rows": step.other_rows} if step else {}
    counts = ("num_prefills", "num_decodes", "num_actual_tokens", "num_spec_decodes")
    return {name: None if tensor is None else tensor.tolist() for name, tensor in tensors.items()} | {
        name: getattr(metadata, name) for name in counts
    }


@pytest.mark.parametrize(("mode", "by_address"), SHARED)
def test_each_group_sees_its_own_state_blocks(mode, by_address):
    engine = Engine(mode, by_address=by_address)
    for name in ("padded", "mixed", "prompts", "mixed", "padded"):
        together = [contents(metadata) for metadata in engine.step(name)]
        assert together == [contents(metadata) for metadata in engine.alone(name)], name
        if name != "prompts":
            blocks = {tuple(content["state blocks"]) for content in together}
            assert len(blocks) == GROUPS


@pytest.mark.parametrize(("name", "gathers"), [("padded", [GROUPS]), ("mixed", [GROUPS] * 2)])
def test_one_gather_for_all_groups_once_their_tables_are_known(name, gathers):
    engine = Engine("align", by_address=True)
    engine.step(name)
    before = [metadata.step.batch.state_blocks.data_ptr() for metadata in engine.step(name)]
    engine.ops.gathers.clear()
    again = engine.step(name)
    assert engine.ops.gathers == gathers
    # A graph reads these addresses when it is replayed.
    assert [metadata.step.batch.state_blocks.data_ptr() for metadata in again] == before


def test_a_table_that_moves_is_gathered_where_it_stands():
    engine = Engine("none", by_address=True)
    engine.step("padded")
    engine.tables[3] = block_table(3, "none") + 1000
    for gathers in ([GROUPS, 1], [GROUPS]):
        engine.ops.gathers.clear()
        together = [contents(metadata) for metadata in engine.step("padded")]
        assert together == [contents(metadata) for metadata in engine.alone("padded")]
        assert together[3]["state blocks"][:3] == [1025, 1026, 1027]
        assert engine.ops.gathers == gathers


@pytest.mark.parametrize("mode", ["none", "align"])
def test_one_commit_for_all_groups(mode):
    engine = Engine(mode, by_address=True)
    sampled = torch.tensor([1, 2, 4], dtype=torch.int32)
    metadata = engine.step("padded")
    answers = [meta.commit_recoverssm_state(sampled) for meta in metadata]
    assert [answer is not None for answer in answers] == [mode == "align"] + [False] * (GROUPS - 1)
    commits = [b.groups_commit for b in engine.builders]
    assert [len(commit.seen) for commit in commits] == [1] + [0] * (GROUPS - 1)
    assert [b.pending is None for b in engine.builders] == [False] + [True] * (GROUPS - 1)
    step, groups = metadata[0].step, metadata[0].groups
    blocks = groups.batch(step).state_blocks
    assert blocks.tolist() == [meta.step.batch.state_blocks[:3].tolist() for meta in metadata]
    assert len(groups.layer_names) == GROUPS


def test_groups_that_vllm_leaves_out_of_a_step_are_not_committed():
    engine = Engine("none", by_address=True)
    engine.step("padded")
    metadata = engine.step("padded", groups=3)
    blocks = metadata[0].groups.batch(metadata[0].step).state_blocks
    assert (blocks[:3] > 0).all()
    assert (blocks[3:] == 0).all()
    assert blocks.shape == (GROUPS, 3)


def test_builders_that_are_never_first_hold_no_buffers():
    engine = Engine("none", by_address=True)
    for b in engine.builders[1:]:
        b.led_groups = None
    engine.step("padded")
    assert [b.led_groups is None for b in engine.builders] == [False] + [True] * (GROUPS - 1)
