# SPDX-License-Identifier: Apache-2.0
"""What is registered with vLLM, in every one of its processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_eagle_ext import compat, failed_start
from vllm_eagle_ext.memory.state_scheme import TARGETS as REPLAYING

# Names contain `EagleExt`, so that a node without this package fails with a name that tells, and
# start with `Eagle3` or `DFlash`, so that vLLM's rewriting of draft architectures leaves them alone.
# Paths are those of packages: vLLM hashes the whole folder into its model-info cache only then.
DRAFTERS = {
    name: f"vllm_eagle_ext.drafters.{family}:{name}"
    for family, names in {
        "eagle3": (
            "Eagle3EagleExtLlamaForCausalLM",
            "Eagle3EagleExtQwen3ForCausalLM",
            "Eagle3EagleExtDeepseekV2ForCausalLM",
        ),
        "dflash": ("DFlashEagleExtQwen3ForCausalLM",),
    }.items()
    for name in names
}

# What vLLM makes of SpecForge's name for P-EAGLE, and does not know; the preflight then writes ours.
ALIASES = {"Eagle3PEagleDraftModel": DRAFTERS["Eagle3EagleExtLlamaForCausalLM"]}

# Targets with replaying layers: the class keeps the name of vLLM's.
TARGETS = {ours: f"vllm_eagle_ext.replay:{architecture}" for architecture, ours in REPLAYING.items()}


def register() -> None:
    """Idempotent: vLLM calls it in every process, some of which inherit an earlier call's effects."""
    failed_start.join()
    compat.warn_outside_tested_range()
    _register_models()
    compat.install_preflight(build_speculative_config)


def build_speculative_config(
    engine_args: Any, target_model_config: Any, build: Callable[[], Any]
) -> Any:
    """Our part of vLLM's `EngineArgs.create_speculative_config`, loaded when an engine is configured."""
    from vllm_eagle_ext.preflight import build as preflight

    if compat.is_tested(compat.vllm_version()):
        return preflight.build_speculative_config(engine_args, target_model_config, build)
    return preflight.build_on_untested_vllm(engine_args, target_model_config, build)


def _register_models() -> None:
    from vllm.model_executor.models.registry import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for architecture, path in (DRAFTERS | ALIASES | TARGETS).items():
        if architecture not in known:
            ModelRegistry.register_model(architecture, path)
