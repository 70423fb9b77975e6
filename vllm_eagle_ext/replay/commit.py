# SPDX-License-Identifier: Apache-2.0
"""The commit on vLLM's V1 runner, which has no hook for it: `compat` calls it right after sampling.

n sampled tokens commit n rows, the anchor and n - 1 accepted drafts; see `ops.types`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vllm_eagle_ext.replay.metadata import ReplayMetadataBuilder

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def commit_on_v1(runner: GPUModelRunner, sampled: torch.Tensor) -> None:
    """Commit a step of V1; sampled [requests, K + 1]: token ids, -1 after the last sampled one."""
    num_sampled = None
    for groups in runner.attn_groups:
        for group in groups:
            builder = group.get_metadata_builder()
            if not isinstance(builder, ReplayMetadataBuilder) or builder.pending is None:
                continue
            if num_sampled is None:
                num_sampled = (sampled != -1).sum(dim=1, dtype=torch.int32)
            step, builder.pending = builder.pending, None
            assert builder.group_commit is not None
            builder.group_commit(step, num_sampled)
