"""python -m tests.support.touched_process register|all RESULT: what the package changes in vLLM.

Takes the identity of every attribute of all loaded modules of vLLM, of their classes, and of every entry
of their dictionaries; installs; compares. Everything that would be imported meanwhile is imported first.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.engine import TINY

LOADED = (
    "vllm.engine.arg_utils",
    "vllm.model_executor.models.config",
    "vllm.model_executor.models.registry",
    "vllm.v1.sample.rejection_sampler",
    "vllm.v1.worker.gpu_model_runner",
    "transformers.models.auto.configuration_auto",
    "vllm_eagle_ext.families.dflash.model",
    "vllm_eagle_ext.families.eagle3.model",
    "vllm_eagle_ext.start.build",
    "vllm_eagle_ext.replay.targets",
)
ROOTS = ("vllm", "transformers.models.auto")


def modules() -> list[ModuleType]:
    names = [name for name in sys.modules if any(f"{name}.".startswith(f"{root}.") for root in ROOTS)]
    return [sys.modules[name] for name in sorted(names) if isinstance(sys.modules[name], ModuleType)]


def attributes() -> Iterator[tuple[str, Any]]:
    for module in modules():
        for name, value in list(vars(module).items()):
            if name == "__dict__" or isinstance(value, ModuleType):
                continue
            at = f"{module.__name__}:{name}"
            yield at, value
            is_defined_here = getattr(value, "__module__", None) == module.__name__
            has_parts = inspect.isclass(value) or (hasattr(value, "__dict__") and not callable(value))
            if is_defined_here and has_parts:
                yield from ((f"{at}.{n}", v) for n, v in list(vars(value).items()))


def snapshot() -> tuple[dict[str, Any], dict[str, Any]]:
    """Attributes, and entries of dictionaries, with their values: kept, none gives its id to another."""
    attrs = dict(attributes())
    entries = {
        f"{at}[{key!r}]": value
        for at, table in attrs.items()
        if isinstance(table, dict)
        for key, value in list(dict.items(table))  # some tables import what they are asked for
    }
    return attrs, entries


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    missing = object()
    return sorted(
        name
        for name in before.keys() | after.keys()
        if before.get(name, missing) is not after.get(name, missing)
    )


def install_all(target: Any) -> list[str]:
    """By the calls of the preflight and of the models; what changed on an adopted layer."""
    import torch
    from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention

    from vllm_eagle_ext import compat
    from vllm_eagle_ext.families.dflash import config_writer as config
    from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
    from vllm_eagle_ext.replay.layer import ReplayGatedDeltaNetAttention
    from vllm_eagle_ext.replay.ops import cpu
    from vllm_eagle_ext.replay.targets import commit_on_v1

    compat.install_in_worker(commit_on_v1)
    compat.add_synthetic_acceptance()
    config.register()
    compat.use_architecture(target, REPLAYING_TARGETS[target.architecture])

    layer = QwenGatedDeltaNetAttention.__new__(QwenGatedDeltaNetAttention)
    torch.nn.Module.__init__(layer)
    layer._forward_method = layer.forward_cpu
    before = {"__class__": type(layer), **vars(layer)}
    ReplayGatedDeltaNetAttention.adopt(layer, cpu)
    return differing(before, {"__class__": type(layer), **vars(layer)})


def main(steps: str, result: Path) -> None:
    for name in LOADED:
        importlib.import_module(name)
    from vllm.config import ModelConfig

    from vllm_eagle_ext import plugin

    target = ModelConfig(str(TINY / "hybrid_target"))
    before = snapshot()

    plugin.register()
    instances = install_all(target) if steps == "all" else []
    after = snapshot()
    diffs = {
        "attributes": differing(before[0], after[0]),
        "entries": differing(before[1], after[1]),
        "instances": [f"ReplayGatedDeltaNetAttention.{name}" for name in instances],
    }
    result.write_text(json.dumps(diffs))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
