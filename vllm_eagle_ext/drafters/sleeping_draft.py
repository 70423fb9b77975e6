# SPDX-License-Identifier: Apache-2.0
"""A drafter that sleeps while nothing is drafted, on the V1 runner.

With K = 0 vLLM runs the drafter over each step's rows all the same, so that its cache has no holes when
drafting goes on. Here such rows are kept, and written in one pass before the next step that drafts.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.utils.torch_utils import async_tensor_h2d

from vllm_eagle_ext.drafters.deferred_context import ContextRows, DeferredContext, StepRows
from vllm_eagle_ext.drafters.row_owners import HeldBlocks, Owner, written
from vllm_eagle_ext.log import get_logger, log_once

logger = get_logger(__name__)

# Steps of a full batch that are kept: a pass over so many costs little more than one step's.
_STEPS = 16
_AWAKE = (
    "Steps that draft nothing: the draft runs over their tokens all the same: with prefix caching, and "
    "its cache in one memory with layers of another kind, rows cannot be written afterwards."
)


def rows_to_keep(max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """Return how many rows a buffer holds: at least a step's, and no more than vLLM's largest pass."""
    return max(max_num_seqs, min(_STEPS * max_num_seqs, max_num_batched_tokens))


class SleepingDraft:
    """Mixed into a drafter class whose cache can be filled from the target's rows alone.

    `compat` asks `sleep_through` before each step's drafting.
    """

    deferred: DeferredContext | None = None

    def fill_cache(self, rows: ContextRows) -> None:
        """Write the draft's keys and values of rows, whose states are [T, n * Ht]."""
        raise NotImplementedError

    def allow_sleep(self, vllm_config: VllmConfig, width: int, device: torch.device) -> None:
        """Allocate the buffer, before vLLM measures how much memory is left for the caches."""
        scheduler = vllm_config.scheduler_config
        rows = rows_to_keep(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
        self.deferred = DeferredContext(rows, width, vllm_config.model_config.dtype, device)

    def sleep_through(
        self, runner: Any, step: Any, sampled: Any, states: list[torch.Tensor], metadata: Any
    ) -> torch.Tensor | None:
        """Keep a step's rows instead of drafting, where nothing is drafted behind it.

        Steps with prompts, or with drafts of which some are rejected, take vLLM's way with K = 0: what
        they write and what is kept are different rows. So do chunks of one token of a prompt, behind
        which nothing is sampled.

        Args:
            runner: vLLM's V1 runner.
            step: its SchedulerOutput.
            sampled: the step's tokens, [requests, >= 1] or a list per request.
            states: per aux layer of the target [>= rows, Ht].
            metadata: CommonAttentionMetadata of the draft's KV-cache group.

        Returns:
            No drafts [requests, 0], or None where the drafter has to run.
        """
        if self.deferred is None or self._shares_a_pool(runner):
            return None
        names = runner.input_batch.req_ids
        if step.num_spec_tokens_to_schedule > 0 or not _decodes_alone(runner, step, names):
            if self._has_to_be_filled(runner, step, names):
                self._fill_afterwards(runner, names)
            return None
        if not self.deferred.has_room(len(names)):
            self._fill_afterwards(runner, names)
        if not self.deferred.has_room(len(names)):  # full of rows of requests that are not in the step
            return None
        self.deferred.keep(_step_rows(runner, names, sampled, states, metadata))
        return torch.empty(len(names), 0, dtype=torch.int64, device=metadata.slot_mapping.device)

    def _shares_a_pool(self, runner: Any) -> bool:
        """Whether a block that is found again by prefix caching may be another layer's memory by then.

        Layers of several KV-cache groups take turns in one memory; the preflight keeps such drafts
        awake, as far as configs tell.
        """
        if not _caches_prefixes(runner) or len(runner.kv_cache_config.kv_cache_groups) == 1:
            return False
        log_once(logger, logging.WARNING, _AWAKE)
        self.deferred = None
        return True

    def _has_to_be_filled(self, runner: Any, step: Any, names: list[str]) -> bool:
        """Whether rows are missing in a step in which the drafter runs.

        With prefix caching any request may read any block, and a row that is kept may have its place in
        a block that another request writes into now: what is kept is written before, always.
        """
        assert self.deferred is not None
        if _caches_prefixes(runner):
            return len(self.deferred) > 0
        return step.num_spec_tokens_to_schedule > 0 and self.deferred.has_rows_of(names)

    def _fill_afterwards(self, runner: Any, names: list[str]) -> None:
        assert self.deferred is not None
        if _caches_prefixes(runner):
            self.deferred.flush(written, self.fill_cache)
            return
        spec = runner.drafter.draft_attn_groups[0].kv_cache_spec
        held = HeldBlocks(runner.requests, names, getattr(spec, "sliding_window", None))
        self.deferred.flush(held.stand, self.fill_cache)


def _caches_prefixes(runner: Any) -> bool:
    return bool(runner.cache_config.enable_prefix_caching)


def _decodes_alone(runner: Any, step: Any, names: list[str]) -> bool:
    """Whether every request has one row, behind which a token was sampled."""
    inside_prompt = runner.discard_request_mask.np[: len(names)]
    return step.total_num_scheduled_tokens == len(names) and not inside_prompt.any()


def _step_rows(
    runner: Any, names: list[str], sampled: Any, states: list[torch.Tensor], metadata: Any
) -> StepRows:
    rows, device = len(names), metadata.slot_mapping.device
    if not isinstance(sampled, torch.Tensor):  # with `disable_padded_drafter_batch`
        sampled = async_tensor_h2d([row[:1] for row in sampled], device, torch.int64)
    positions = runner._get_positions(rows)  # with M-RoPE [3, rows], of which drafts take the first
    requests = [runner.requests[name] for name in names]
    return StepRows(
        states=states,
        next_tokens=sampled[:rows, 0],
        positions=positions if positions.dim() == 1 else positions[0],
        places=metadata.slot_mapping[:rows],
        owners=[
            Owner(name, request, request.block_ids, request.num_computed_tokens)
            for name, request in zip(names, requests, strict=True)
        ],
    )
