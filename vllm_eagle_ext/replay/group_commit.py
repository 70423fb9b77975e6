# SPDX-License-Identifier: Apache-2.0
"""Commits what a step sampled, in all layers of a KV-cache group. Both of vLLM's runners end up here."""

from __future__ import annotations

import torch
from vllm.config import VllmConfig

from vllm_eagle_ext.replay.ops.types import Plan, PlanApplier
from vllm_eagle_ext.replay.platform_ops import replay_ops
from vllm_eagle_ext.replay.protocol import ReplayLayer, Step


class GroupCommit:
    def __init__(self, layer_names: list[str], vllm_config: VllmConfig) -> None:
        self._names = layer_names
        # vLLM's register of the layers that run inside compiled graphs, by prefix.
        self._layers: dict[str, ReplayLayer] = vllm_config.compilation_config.static_forward_context
        self._most_requests = vllm_config.scheduler_config.max_num_seqs
        self._recurrence = replay_ops().recurrence
        self._bound: tuple[PlanApplier, Plan] | None = None

    def __call__(self, step: Step, num_sampled: torch.Tensor) -> None:
        """Commit a step; num_sampled [requests of the whole batch] int32."""
        if self._bound is None:  # the cache exists only after the builder
            self._bound = self._bind([self._layers[name] for name in self._names])
        apply, plan = self._bound
        batch = step.batch.first(step.num_requests)
        mine = Plan(*(part[: len(batch.state_blocks)] for part in plan))
        self._recurrence.plan(batch, num_sampled, step.rows_of, step.align, mine)
        apply(batch, mine)

    def _bind(self, layers: list[ReplayLayer]) -> tuple[PlanApplier, Plan]:
        apply = self._recurrence.ApplyPlan(
            [(layer.state_cache, layer.gating, 0) for layer in layers], layers[0].conv_kernel_size - 1
        )
        device = layers[0].gating.A_log.device
        return apply, Plan(*torch.zeros(4, self._most_requests, dtype=torch.int32, device=device))
