"""Rows that a sleeping draft keeps, whose they are, and what is written of them afterwards."""

from __future__ import annotations

import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from tests.support.drafting import load
from tests.support.drafts import valid_draft
from tests.support.engine import has_gpu
from vllm_eagle_ext.drafters.deferred_context import DeferredContext, StepRows
from vllm_eagle_ext.drafters.row_owners import HeldBlocks, Owner, Standing
from vllm_eagle_ext.drafters.sleeping_draft import rows_to_keep

ROWS, HIDDEN = 8, 4
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
    return Owner(state.req_id, state.block_ids, position)


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

    def test_so_has_one_that_came_again_under_its_name_or_was_resumed(self):
        before, state = request(3), request(3)
        assert held([state]).stand(owner(before)) is Standing.LOST
        kept = owner(state)
        state.block_ids = ([103], [3])  # a resumed request's list is replaced, whatever it holds
        assert held([state]).stand(kept) is Standing.LOST

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
    return StepRows(states=states, positions=rows, places=rows + 50, owners=owners)


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
        context.flush(written, lambda *rows: filled.append(rows))
        ((states, positions, places),) = filled
        assert positions.tolist() == [0, 1, 2]
        assert places.tolist() == [50, 51, 52]
        assert states.tolist() == [[n, n, n + 0.5, n + 0.5] for n in (0.0, 1.0, 2.0)]
        assert len(context) == 0

    def test_a_lost_row_goes_nowhere(self, context):
        a, b = owner(request(3)), owner(request(4, name="b"))
        context.keep(step(0, a, b, a))
        filled = []
        lost = {id(b): Standing.LOST}
        context.flush(lambda one: lost.get(id(one), Standing.WRITTEN), lambda *rows: filled.append(rows))
        assert filled[0][2].tolist() == [50, -1, 52]
        assert len(context) == 0

    def test_a_waiting_row_is_written_later(self, context):
        a, b = owner(request(3)), owner(request(4, name="b"))
        context.keep(step(0, a, b, a, b))
        waits = {id(b): Standing.WAITING}
        filled = []
        context.flush(
            lambda one: waits.get(id(one), Standing.WRITTEN), lambda *rows: filled.append(rows)
        )
        assert filled[0][2].tolist() == [50, -1, 52, -1]
        assert len(context) == 2
        assert context.has_rows_of(["b"])
        assert not context.has_rows_of(["a"])
        context.keep(step(7, a))
        context.flush(written, lambda *rows: filled.append(rows))
        states, positions, places = filled[1]
        assert positions.tolist() == [1, 3, 7]
        assert places.tolist() == [51, 53, 57]
        assert states[:, 0].tolist() == [1, 3, 7]

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
        context.flush(written, lambda *rows: filled.append(rows[1].tolist()))
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
def test_many_rows_in_one_pass_are_written_as_one_after_the_other(tmp_path):
    """vLLM's DFlash module; only its paged attention is replaced, by a list."""
    torch.manual_seed(0)
    one, *_ = load(tmp_path / "one", valid_draft("dflash"))
    many, *_ = load(tmp_path / "many", valid_draft("dflash"))
    states, positions = torch.randn(ROWS, one.model.fc.input_size), torch.arange(ROWS)
    for row in range(ROWS):
        one.fill_cache(states[row : row + 1], positions[row : row + 1], positions[row : row + 1])
    many.fill_cache(states, positions, positions)
    for left, right in zip(one.model.layers, many.model.layers, strict=True):
        written, at_once = left.self_attn.attn, right.self_attn.attn
        assert len(at_once.keys) == ROWS
        torch.testing.assert_close(at_once.keys, written.keys)
        torch.testing.assert_close(at_once.values, written.values)
