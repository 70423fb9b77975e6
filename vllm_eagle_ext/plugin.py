# SPDX-License-Identifier: Apache-2.0
"""What is registered with vLLM, in every one of its processes.

`compat` replaces names of vLLM's, in a dry start `start/described.py`, and nothing else does. What is
set besides by vLLM's own ways, and until when:

- For good: an entry point in vllm.general_plugins; drafters and targets in ModelRegistry.models;
  gauges in prometheus_client's registry (start/metrics.py).
- An import hook in sys.meta_path, until the modules to wrap are imported (compat.py:when_loaded).
- With a draft, in the front end (start/apply.py): transformers' CONFIG_MAPPING for `dflash`, until a
  library has a class for it; the draft's ModelConfig, until vLLM has one resolver;
  EngineArgs.scheduler_cls and .disable_hybrid_kv_cache_manager. In start/failed_start.py: logging's
  record factory, sys.excepthook and EAGLE_EXT_NOTES, until vLLM's front end raises the worker's error.
- With replay: MODELS_CONFIG_MAP and the target's architecture (compat.py), until vLLM lets a plugin
  choose it; the class of gated delta net layers and their _forward_method (replay/layer.py), until vLLM
  takes such layers from a registry.
- Of a draft in a worker: class and qkv_proj of gated attention (families/parts/gated_attention.py),
  until vLLM's drafters take it; embed_tokens with LoRA (families/parts/resolved.py), until V1 shares it.
- In workers of `bench` and `verify`: methods that time a step (measure/engine/probe.py), until vLLM's
  metrics tell target and draft apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_eagle_ext import compat
from vllm_eagle_ext.families.drafter_classes import drafters
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
from vllm_eagle_ext.start import failed_start
from vllm_eagle_ext.version import is_tested

# Targets with replaying layers: the class keeps the name of vLLM's.
TARGETS = {
    ours: f"vllm_eagle_ext.replay:{architecture}" for architecture, ours in REPLAYING_TARGETS.items()
}


def registered_drafters() -> dict[str, str]:
    """Return this package's drafter classes, by the architecture that a resolved config names.

    Names contain `EagleExt`, so that a node without this package fails with a name that tells, and
    start with vLLM's own name for the method, so that its rewriting of draft architectures does not
    change them. Paths are those of packages: only then vLLM hashes the whole folder into its model-info
    cache.
    """
    return {each.architecture: each.registration for each in drafters() if not each.uses_vllm_class}


def aliases() -> dict[str, str]:
    """Return the names that vLLM looks up before a start writes the class's own."""
    return {name: drafter.registration for drafter in drafters() for name in drafter.aliases}


def register() -> None:
    """Register this package. A second call, as in a process that was forked, changes nothing."""
    failed_start.join()
    compat.warn_outside_tested_range()
    _register_models()
    compat.install_in_front_end(build_speculative_config, judge_engine)


def build_speculative_config(
    engine_args: Any, target_model_config: Any, parallel_config: Any, build: Callable[[], Any]
) -> Any:
    """Run our part of vLLM's `EngineArgs.create_speculative_config`."""
    from vllm_eagle_ext.start import build as steps

    if is_tested(compat.vllm_version()):
        return steps.build_speculative_config(engine_args, target_model_config, parallel_config, build)
    return steps.build_on_untested_vllm(engine_args, target_model_config, parallel_config, build)


def judge_engine(engine_args: Any, vllm_config: Any) -> None:
    """Run our part of vLLM's `EngineArgs.create_engine_config`."""
    from vllm_eagle_ext.start import build as steps

    steps.judge_engine(engine_args, vllm_config)


def _register_models() -> None:
    from vllm.model_executor.models.registry import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for architecture, path in (registered_drafters() | aliases() | TARGETS).items():
        if architecture not in known:
            ModelRegistry.register_model(architecture, path)
