# SPDX-License-Identifier: Apache-2.0
"""vLLM's targets with replaying layers, registered under names of their own; `memory.state_blocks` says
when they are chosen.

A class keeps its parent's name: vLLM's V1 runner knows multimodal targets by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.models import (
    interns2_mobius,
    interns2_preview,
    minicpmv4_6,
    minicpmv4_7,
    qwen3_5,
    qwen3_next,
)
from vllm.model_executor.offloader.base import get_offloader
from vllm.model_executor.offloader.prefetch import PrefetchOffloader
from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState
from vllm.v1.worker.gpu.model_states.recoverssm import RecoverSSMState

from vllm_eagle_ext import compat
from vllm_eagle_ext.errors import UnsupportedTargetError
from vllm_eagle_ext.families.resolved_marker import require_marker
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS, record_width
from vllm_eagle_ext.replay.layer import ReplayGatedDeltaNetAttention
from vllm_eagle_ext.replay.metadata import ReplayMetadataBuilder
from vllm_eagle_ext.replay.self_check.at_start import resolve_kernels

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def commit_on_v1(runner: GPUModelRunner, sampled_ids: torch.Tensor) -> None:
    """Commit a step of V1, which has no hook for it: `compat` calls this right after sampling.

    n sampled tokens commit n rows, the anchor and n - 1 accepted drafts; see `ops.types`.

    Args:
        sampled_ids: [requests, K + 1] token ids, -1 after the last sampled one.
    """
    num_sampled = None
    for groups in runner.attn_groups:
        for group in groups:
            builder = group.get_metadata_builder()
            if not isinstance(builder, ReplayMetadataBuilder) or builder.pending is None:
                continue
            if num_sampled is None:
                num_sampled = (sampled_ids != -1).sum(dim=1, dtype=torch.int32)
            step, builder.pending = builder.pending, None
            assert builder.groups_commit is not None
            builder.groups_commit(step, num_sampled)


class ReplayModelState(MambaHybridModelState):
    """Commits a step of V2. Differences from the parent: RecoverSSM, vLLM's bookkeeping for targets that
    recover a state instead of keeping one per draft token, is on. It remembers each step's metadata and,
    after sampling, calls `ReplayMetadata.commit_recoverssm_state`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recoverssm = RecoverSSMState()


class _Replay:
    """Mixed in before a target of vLLM's."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        decided = require_marker(vllm_config.model_config.hf_config, "target")
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        modules = self.modules()  # type: ignore[attr-defined]
        layers = [module for module in modules if isinstance(module, QwenGatedDeltaNetAttention)]
        kernels = resolve_kernels(layers, decided["replay_kernels"], must_replay=decided["must_replay"])
        if kernels is None:
            # It becomes vLLM's own target, and the config gets its name again. vLLM sizes the worker's
            # blocks by that class, and keys compiled graphs by that name; for replay both are others.
            compat.install_in_worker()
            self.__class__ = next(base for base in type(self).__mro__ if not issubclass(base, _Replay))  # type: ignore[assignment]
            names = {ours: stock for stock, ours in REPLAYING_TARGETS.items()}
            model_config = vllm_config.model_config
            compat.use_architecture(model_config, names[model_config.architecture])
            return
        compat.install_in_worker(commit_on_v1)
        for layer in layers:
            ReplayGatedDeltaNetAttention.adopt(layer, kernels)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        """Refuse an update that vLLM would lose, as it fills prefetched layers with the start's weights.

        Raises:
            UnsupportedTargetError: vLLM prefetches layers, and has started to.
        """
        offloader = get_offloader()
        if isinstance(offloader, PrefetchOffloader) and offloader.buffer_pool is not None:
            raise UnsupportedTargetError(
                field="weight update of a target whose layers vLLM prefetches",
                value="asked for",
                allowed="a start: vLLM (0.32) goes on with the weights of the start",
                remedy="take --cpu-offload-gb in place of --offload-group-size, or start again",
            )
        return super().load_weights(weights)  # type: ignore[misc]

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: VllmConfig) -> tuple[Any, ...]:
        """Return the shapes by which vLLM sizes its state blocks before a layer exists. The recorded
        inputs count as part of the conv state: with more than two entries vLLM's CPU platform takes a
        target for another kind, with states of another dtype."""
        config = vllm_config.model_config.hf_text_config
        tp = vllm_config.parallel_config.tensor_parallel_size
        width = record_width(
            config.linear_num_key_heads // tp,
            config.linear_key_head_dim,
            config.linear_num_value_heads // tp,
            config.linear_value_head_dim,
        )
        conv, *others = super().get_mamba_state_shape_from_config(vllm_config)  # type: ignore[misc]
        dtype = super().get_mamba_state_dtype_from_config(vllm_config)[0]  # type: ignore[misc]
        records = (
            (1 + vllm_config.num_speculative_tokens) * width * vllm_config.model_config.dtype.itemsize
        )
        return ((math.prod(conv) + -(-records // dtype.itemsize),), *others)

    @classmethod
    def get_model_state_cls(cls) -> type:
        return ReplayModelState


_MODULES = (qwen3_next, qwen3_5, interns2_preview, interns2_mobius, minicpmv4_6, minicpmv4_7)
for _name in REPLAYING_TARGETS:
    _stock = next(getattr(module, _name) for module in _MODULES if hasattr(module, _name))
    globals()[_name] = type(_name, (_Replay, _stock), {"__module__": __name__})
