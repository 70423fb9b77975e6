# SPDX-License-Identifier: Apache-2.0
"""When a step's accepted rows are committed: after sampling, on both of vLLM's runners."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState
from vllm.v1.worker.gpu.model_states.recoverssm import RecoverSSMState


class ReplayModelState(MambaHybridModelState):
    """V2: vLLM's own hooks, which call `ReplayMetadata.commit_recoverssm_state`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recoverssm = RecoverSSMState()


def commit_on_v1(runner: Any, sampled: torch.Tensor) -> None:
    """V1. sampled [requests, K + 1]: token ids, -1 behind the last accepted one."""
    from vllm_eagle_ext.replay.metadata import ReplayMetadataBuilder

    num_sampled = None
    for groups in runner.attn_groups:
        for group in groups:
            builder = group.get_metadata_builder()
            if not isinstance(builder, ReplayMetadataBuilder) or builder.pending is None:
                continue
            if num_sampled is None:
                num_sampled = (sampled != -1).sum(dim=1, dtype=torch.int32)
            step, builder.pending = builder.pending, None
            builder.committer.commit(step, num_sampled)
