# SPDX-License-Identifier: Apache-2.0
"""Compiles what the first mixed batch of a GPU needs, at the first commit.

That is part of vLLM's own warm-up, whose steps verify all of their requests or none. A batch of prompts
and verified requests asks for other variants of the same kernels; compiling while serving is a stall.
Nothing is written here that a step would read.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import torch
from vllm.v1.attention.backends.recoverssm_metadata import (
    RecoverSSMMetadata,
    RecoverSSMPostprocessMetadata,
)
from vllm.v1.worker.gpu.model_states.recoverssm import RecoverSSMState
from vllm.v1.worker.utils import AttentionGroup

from vllm_eagle_ext.replay.cache_groups import CacheGroups
from vllm_eagle_ext.replay.ops.types import Plan, PlanApplier, Recurrence
from vllm_eagle_ext.replay.protocol import Step


class _Answer(RecoverSSMMetadata):
    """Of a step that committed nothing."""

    def __init__(self, answer: RecoverSSMPostprocessMetadata) -> None:
        self.answer = answer

    def commit_recoverssm_state(
        self, num_accepted_tokens: torch.Tensor
    ) -> RecoverSSMPostprocessMetadata | None:
        return self.answer


def compile_mixed_batches(
    recurrence: Recurrence,
    groups: CacheGroups,
    step: Step,
    num_sampled: torch.Tensor,
    apply: PlanApplier,
    plan: Plan,
) -> None:
    """
    Args:
        step, num_sampled: of the commit that comes first.
        plan: its buffers, before they are filled.
    """
    for requests in (1, plan.final.shape[-1]):  # the chunked kernels' tiles differ
        apply(groups.of_nobody(step, None, requests), Plan(*(part[:, :requests] for part in plan)))
    nobody = torch.zeros(1, dtype=torch.int32, device=num_sampled.device)
    for rows_of in (None, nobody):
        batch = groups.of_nobody(step, rows_of)
        parts = Plan(*(part[:, :1] for part in plan))
        recurrence.plan(batch, num_sampled, rows_of, groups.align(step), parts)
        _compile_align(groups, step, num_sampled, rows_of)


def _compile_align(
    groups: CacheGroups, step: Step, num_sampled: torch.Tensor, rows_of: torch.Tensor | None
) -> None:
    """vLLM's kernel behind a commit; it passes requests over whose index is negative."""
    align = groups.align(step)
    if align is None:
        return
    like = torch.zeros_like(num_sampled[:1])
    answer = RecoverSSMPostprocessMetadata(
        num_spec_decodes=1,
        request_indices=rows_of,
        block_table=align.tables.tensors[0],
        num_computed_tokens=like,
        block_size=align.block_size,
    )
    state = RecoverSSMState()
    group = cast(AttentionGroup, SimpleNamespace(layer_names=["nobody's"]))
    state.record_step({"nobody's": _Answer(answer)}, [[group]], for_capture=False)
    state.commit_step(
        like,
        torch.full_like(like, -1, dtype=torch.int64),
        state_indices=torch.zeros_like(like),
        num_accepted_tokens=torch.zeros_like(like),
    )
