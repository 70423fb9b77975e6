# SPDX-License-Identifier: Apache-2.0
"""What is asked of a worker from within: what it serves.

    LLM(worker_extension_cls="vllm_eagle_ext.measure.engine.probe.StepProbe")

vLLM mixes the class into its worker. Only the engines that `bench` and `verify` start name it; no
other process that serves imports anything of `measure`. It imports nothing of this package's plugin
and changes nothing until it is asked to, so that it measures an engine of stock vLLM alike.
"""

from __future__ import annotations

import sys
from typing import Any


class StepProbe:
    """Methods for `LLM.collective_rpc`; vLLM refuses names that its worker has, hence the prefix."""

    model_runner: Any
    vllm_config: Any

    def eagle_ext_facts(self) -> dict[str, Any]:
        from vllm.platforms import current_platform

        runner = self.model_runner
        draft = runner.get_draft_model()
        groups = [*runner.attn_groups, *getattr(getattr(runner, "speculator", None), "attn_groups", [])]
        return {
            "target": type(runner.get_model()).__name__,
            "drafter": type(draft).__name__ if draft is not None else None,
            "attention": sorted({one.backend.get_name() for group in groups for one in group}),
            "runner": "v2" if self.vllm_config.use_v2_model_runner else "v1",
            "state": self._eagle_ext_state(),
            "device": current_platform.get_device_name(),
            "kv_cache_blocks": runner.kv_cache_config.num_blocks,
            "plugin": "vllm_eagle_ext.plugin" in sys.modules,
        }

    def eagle_ext_accept_by_lot(self) -> None:
        """Let a CPU's V1 runner take a synthetic acceptance, as every other runner does by itself."""
        from vllm_eagle_ext.compat import accept_by_lot

        accept_by_lot()

    def _eagle_ext_state(self) -> str | None:
        """Say how recurrent states are kept; None without any, or without a draft."""
        from vllm.v1.kv_cache_interface import MambaSpec

        groups = self.model_runner.kv_cache_config.kv_cache_groups
        if not self.vllm_config.speculative_config or not any(
            isinstance(group.kv_cache_spec, MambaSpec) for group in groups
        ):
            return None
        ours = sys.modules.get("vllm_eagle_ext.replay.layer")  # not loaded: no layer is ours
        layers = self.vllm_config.compilation_config.static_forward_context.values()  # with a cache
        replay = ours is not None and any(
            isinstance(layer, ours.ReplayGatedDeltaNetAttention) for layer in layers
        )
        return "replay" if replay else "per_token"
