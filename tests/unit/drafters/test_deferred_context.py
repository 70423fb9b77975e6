"""Rows that a sleeping draft keeps, whose they are, and what is written of them afterwards."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.worker.gpu_input_batch import CachedRequestState
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from tests.support.drafting import load
from tests.support.drafts import valid_draft
from tests.support.engine import has_gpu
from vllm_eagle_ext.drafters.deferred_context import ContextRows, DeferredContext, StepRows
from vllm_eagle_ext.drafters.row_owners import HeldBlocks, Owner, Standing
from vllm_eagle_ext.drafters.sleeping_draft import rows_to_keep

ROWS, HIDDEN = 8, 4
EAGLE3_OF_ONE_LAYER = ("native", "post-norm", "norm_before_fc", "qwen3", "gated", "speculators")
GROUP = 1


def request(*blocks: int, computed: int = 0, name: str = "a") -> CachedRequestState:
    """As the V1 runner keeps it, with blocks of two KV-cache groups; the draft's are the second."""
    return CachedRequestState(
        req_id=name,
        prompt_token_ids=[1],
        mm_features=[],
        sampling_params=SamplingParams(),
        generator=None,
        block_ids=([100 + block for block in blocks], list(blocks)),
        num_computed_tokens=computed,
        output_token_ids=[],
    )


def owner(state: CachedRequestState, position: int = 0) -> Owner:
    return Owner(state.req_id, state, state.block_ids, position)


def held(states, in_step=("a",), window=None) -> HeldBlocks:
    return HeldBlocks({state.req_id: state for state in states}, in_step, window)


class TestWhoseBlocks:
    def test_rows_of_a_request_of_the_step_are_written(self):
        state = request(3)
        kept = owner(state)
        state.block_ids[GROUP].append(4)  # as the runner adds blocks
        assert held([state]).stand(kept) is Standing.WRITTEN

    def test_one_that_finished_has_lost_them(self):
        assert held([]).stand(owner(request(3))) is Standing.LOST

    def test_so_has_one_that_came_again_under_its_name(self):
        """With its blocks, too."""
        before, state = request(3, computed=9), request(3, computed=9)
        assert held([state]).stand(owner(before)) is Standing.LOST

    @pytest.mark.parametrize(
        ("blocks", "computed"),
        [((4, 3), 9), ((3,), 9), ((), 9), ((3, 5, 4), 9), ((3, 4), 0), ((3, 4), 6)],
    )
    def test_so_has_one_that_was_resumed(self, blocks, computed):
        """In other blocks, or in the same ones before it reaches the row."""
        state = request(3, 4, computed=7)
        kept = owner(state, position=6)
        state.block_ids, state.num_computed_tokens = request(*blocks).block_ids, computed
        assert held([state]).stand(kept) is Standing.LOST

    @pytest.mark.parametrize("group", [0, GROUP])
    def test_streaming_input_leaves_them_to_their_request(self, group):
        state = request(3, 4, computed=7)
        kept = owner(state, position=6)
        state.block_ids = request(3, 4, 5).block_ids
        assert held([state]).stand(kept) is Standing.WRITTEN
        assert held([state], in_step=[]).stand(kept) is Standing.WAITING
        state.block_ids[group][1] = 6
        assert held([state]).stand(kept) is Standing.LOST

    def test_as_do_blocks_that_were_freed_behind_a_window(self):
        state = request(3, 4, 5, computed=9)
        inside, behind = owner(state, position=8), owner(state, position=3)
        state.block_ids = request(0, 4, 5, 6).block_ids
        state.block_ids[0][0] = 103
        assert held([state], window=6).stand(inside) is Standing.WRITTEN
        assert held([state], window=6).stand(behind) is Standing.LOST

    def test_vllm_replaces_the_lists_and_keeps_the_state(self):
        """What a streaming update of the V1 runner does, by its own function."""
        state = request(3, 4, computed=7)
        kept = owner(state, position=6)
        runner = SimpleNamespace(
            requests={"a": state},
            input_batch=SimpleNamespace(remove_request=lambda _: None),
            late_interaction_runner=SimpleNamespace(register_request=lambda *_: None),
            uses_mrope=False,
        )
        update = NewRequestData(
            req_id="a", prompt_token_ids=[1] * 9, mm_features=[], pooling_params=None,
            sampling_params=SamplingParams(), block_ids=request(3, 4, 5).block_ids,
            num_computed_tokens=7, lora_request=None,
        )  # fmt: skip
        assert GPUModelRunner._update_streaming_request(runner, "a", update) is state
        assert state.block_ids is not kept.blocks
        assert held([state]).stand(kept) is Standing.WRITTEN

    def test_those_of_one_that_is_not_in_the_step_wait(self):
        """The runner keeps a preempted request as it was, too."""
        waiting, other = request(3), request(4, name="b")
        assert held([waiting, other], in_step=["b"]).stand(owner(waiting)) is Standing.WAITING

    @pytest.mark.parametrize(("position", "lost"), [(9, True), (10, True), (11, False), (30, False)])
    def test_rows_behind_a_window_are_lost(self, position, lost):
        """vLLM frees what lies before the last `window` - 1 computed tokens and the next one."""
        stood = held([request(3, computed=30)], window=20)
        state = stood._requests["a"]
        assert (stood.stand(owner(state, position)) is Standing.LOST) is lost


def step(first: int, *owners: Owner) -> StepRows:
    """Two aux layers; a row's states are its number and a half."""
    numbers = torch.arange(first, first + len(owners) + 2, dtype=torch.float32)  # padded by two
    states = [numbers[:, None].expand(-1, HIDDEN // 2) + half for half in (0.0, 0.5)]
    rows = numbers[: len(owners)].long()
    return StepRows(
        states=states, next_tokens=rows + 20, positions=rows, places=rows + 50, owners=owners
    )


def written(_: Owner) -> Standing:
    return Standing.WRITTEN


@pytest.fixture
def context():
    return DeferredContext(ROWS, HIDDEN, torch.float32, torch.device("cpu"))


class TestDeferredContext:
    def test_rows_come_out_as_they_were_kept_in_one_pass(self, context):
        a, b = owner(request(3)), owner(request(4, name="b"))
        context.keep(step(0, a, b))
        context.keep(step(2, b))
        filled = []
        context.flush(written, filled.append)
        (rows,) = filled
        assert rows.positions.tolist() == [0, 1, 2]
        assert rows.next_tokens.tolist() == [20, 21, 22]
        assert rows.places.tolist() == [50, 51, 52]
        assert rows.states.tolist() == [[n, n, n + 0.5, n + 0.5] for n in (0.0, 1.0, 2.0)]
        assert len(context) == 0

    def test_a_lost_row_goes_nowhere(self, context):
        a, b = owner(request(3)), owner(request(4, name="b"))
        context.keep(step(0, a, b, a))
        filled = []
        lost = {id(b): Standing.LOST}
        context.flush(lambda one: lost.get(id(one), Standing.WRITTEN), filled.append)
        assert filled[0].places.tolist() == [50, -1, 52]
        assert len(context) == 0

    def test_a_waiting_row_is_written_later(self, context):
        a, b = owner(request(3)), owner(request(4, name="b"))
        context.keep(step(0, a, b, a, b))
        waits = {id(b): Standing.WAITING}
        filled = []
        context.flush(lambda one: waits.get(id(one), Standing.WRITTEN), filled.append)
        assert filled[0].places.tolist() == [50, -1, 52, -1]
        assert len(context) == 2
        assert context.has_rows_of(["b"])
        assert not context.has_rows_of(["a"])
        context.keep(step(7, a))
        context.flush(written, filled.append)
        assert filled[1].positions.tolist() == [1, 3, 7]
        assert filled[1].next_tokens.tolist() == [21, 23, 27]
        assert filled[1].places.tolist() == [51, 53, 57]
        assert filled[1].states[:, 0].tolist() == [1, 3, 7]

    def test_without_a_row_left_there_is_no_pass(self, context):
        context.keep(step(0, owner(request(3))))
        context.flush(lambda _: Standing.LOST, lambda *_: pytest.fail("a pass for nothing"))
        assert len(context) == 0

    def test_it_fills_up_and_is_empty_after_a_flush(self, context):
        a = owner(request(3))
        for first in range(0, ROWS, 2):
            assert context.has_room(2)
            context.keep(step(first, a, a))
        assert not context.has_room(1)
        filled = []
        context.flush(written, lambda rows: filled.append(rows.positions.tolist()))
        assert filled == [list(range(ROWS))]
        assert context.has_room(ROWS)

    def test_the_buffer_is_never_made_anew(self, context):
        before = context.states.data_ptr()
        for first in range(20):
            if not context.has_room(1):
                context.flush(written, lambda *_: None)
            context.keep(step(first, owner(request(3))))
        assert context.states.data_ptr() == before
        assert len(context) == 20 % ROWS


@pytest.mark.parametrize(
    ("requests", "tokens", "rows"), [(8, 8192, 128), (256, 2048, 2048), (256, 256, 256), (1, 2048, 16)]
)
def test_rows_to_keep(requests, tokens, rows):
    assert rows_to_keep(requests, tokens) == rows


@pytest.mark.skipif(has_gpu(), reason="builds vLLM's layers on its CPU platform")
@pytest.mark.usefixtures("single_process_group")
class TestFilling:
    """vLLM's modules; only their paged attention is replaced, by a list."""

    def test_many_rows_in_one_pass_are_written_as_one_after_the_other(self, tmp_path):
        torch.manual_seed(0)
        one, *_ = load(tmp_path / "one", valid_draft("dflash"))
        many, *_ = load(tmp_path / "many", valid_draft("dflash"))
        rows = context_rows(one.model.fc.input_size)
        for row in range(ROWS):
            one.fill_cache(replace(rows, **{name: value[row : row + 1] for name, value in each(rows)}))
        many.fill_cache(rows)
        for left, right in zip(one.model.layers, many.model.layers, strict=True):
            assert_same_cache(right.self_attn.attn, left.self_attn.attn)

    @pytest.mark.parametrize("family", EAGLE3_OF_ONE_LAYER)
    def test_what_is_written_is_what_a_pass_of_the_draft_writes(self, family, tmp_path):
        awake, *_ = load(tmp_path / "awake", valid_draft(family))
        asleep, *_ = load(tmp_path / "asleep", valid_draft(family))
        rows = context_rows(awake.model.fc_input_size)
        awake(rows.next_tokens, rows.positions, awake.combine_hidden_states(rows.states))
        asleep.fill_cache(rows)
        ((layer,), (other,)) = awake.model.layers, asleep.model.layers
        assert_same_cache(other.self_attn.attn, layer.self_attn.attn)


def context_rows(width: int) -> ContextRows:
    torch.manual_seed(0)
    states, rows = torch.randn(ROWS, width), torch.arange(ROWS)
    return ContextRows(states=states, next_tokens=rows + 7, positions=rows, places=rows)


def each(rows: ContextRows) -> list[tuple[str, torch.Tensor]]:
    return [(field.name, getattr(rows, field.name)) for field in fields(rows)]


def assert_same_cache(found, expected):
    assert len(found.keys) == ROWS
    torch.testing.assert_close(found.keys, expected.keys)
    torch.testing.assert_close(found.values, expected.values)
