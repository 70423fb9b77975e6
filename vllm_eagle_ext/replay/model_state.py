# SPDX-License-Identifier: Apache-2.0
"""The commit on vLLM's V2 runner, by vLLM's own hooks for recurrent states."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState
from vllm.v1.worker.gpu.model_states.recoverssm import RecoverSSMState


class ReplayModelState(MambaHybridModelState):
    """Differences from the parent: RecoverSSM, vLLM's bookkeeping for targets that recover a state
    instead of keeping one per draft token, is on. It remembers each step's metadata and, after sampling,
    calls `ReplayMetadata.commit_recoverssm_state`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recoverssm = RecoverSSMState()
