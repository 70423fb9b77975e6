# SPDX-License-Identifier: Apache-2.0
"""Commits what a step sampled, in all layers of all KV-cache groups. Both runners end up here."""

from __future__ import annotations

import torch
from vllm.config import VllmConfig

from vllm_eagle_ext.replay.cache_groups import ALIGNED, CacheGroups
from vllm_eagle_ext.replay.ops.types import Layer, Plan, PlanApplier, Recurrence
from vllm_eagle_ext.replay.platform_ops import replay_ops
from vllm_eagle_ext.replay.protocol import ReplayLayer, Step


class GroupCommit:
    def __init__(self, groups: CacheGroups, vllm_config: VllmConfig) -> None:
        self._groups = groups
        # vLLM's register of the layers that run inside compiled graphs, by prefix.
        self._layers: dict[str, ReplayLayer] = vllm_config.compilation_config.static_forward_context
        self._most_requests = vllm_config.scheduler_config.max_num_seqs
        self._ops = replay_ops()
        self._bound: tuple[int, Recurrence, PlanApplier, Plan] | None = None

    def __call__(self, step: Step, num_sampled: torch.Tensor) -> None:
        """Commit a step; num_sampled [requests of the whole batch] int32."""
        recurrence, apply, plan = self._bind(step, num_sampled)
        mine = Plan(*(part[:, : step.num_requests] for part in plan))
        batch, align = self._groups.batch(step), self._groups.align(step)
        recurrence.plan(batch, num_sampled, step.places.rows_of, align, mine)
        apply(batch, mine)

    def _bind(self, step: Step, num_sampled: torch.Tensor) -> tuple[Recurrence, PlanApplier, Plan]:
        """Prepare the commit of all groups, again when one has joined. The cache, too, exists only after
        the builders."""
        names = self._groups.layer_names
        if self._bound is None or self._bound[0] != len(names):
            found = [(self._layers[name], group) for group, each in enumerate(names) for name in each]
            layers = [Layer(layer.state_cache, layer.gating, group) for layer, group in found]
            first = found[0][0]
            recurrence = first.recurrence  # a target's layers have the same
            apply = recurrence.ApplyPlan(layers, first.conv_kernel_size - 1)
            size = (4, len(names), self._most_requests + -self._most_requests % ALIGNED)
            device = layers[0].gating.A_log.device
            parts = torch.zeros(size, dtype=torch.int32, device=device)
            self._bound = (len(names), recurrence, apply, Plan(*parts))
            self._ops.warm_up(
                recurrence, self._groups, step, num_sampled, apply, Plan(*parts), layers[0]
            )
        return self._bound[1:]
