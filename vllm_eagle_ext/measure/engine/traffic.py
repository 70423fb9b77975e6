# SPDX-License-Identifier: Apache-2.0
"""Bytes that a step of a loaded model moves, and how fast its device copies. Runs within a worker."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_MIB = 2**20
_CPU_BUFFER, _BUFFER = 256 * _MIB, 1024 * _MIB  # far larger than the caches
_COPIES = 5


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """What a pass reads. Storage that two modules share counts once."""

    dense: int = 0
    experts: int = 0
    experts_per_layer: int = 0
    experts_per_token: int = 0


@dataclass(frozen=True, slots=True)
class CacheBytes:
    target_per_token: int
    draft_per_token: int
    state: int  # a block's content in all recurrent layers, the recorded inputs of replay included
    state_blocks: int  # that a step may write; one more, which prefix caching keeps, is none of them


def weights(model: Any) -> WeightBytes:
    """An embedding table is looked up and not read, unless it is the output head too.

    Towers for images and sound decode nothing and are left out.
    """
    if model is None:
        return WeightBytes()
    modules = list(_text_modules(model))
    experts = [module for module in modules if _is_experts(module)]
    heads = _storages(m for m in modules if _is_head(m))
    tables = _storages(m for m in modules if _is_table(m))
    routed = _storages(experts)
    skipped = (tables.keys() - heads.keys()) | routed.keys()
    dense = {key: size for key, size in _storages(modules).items() if key not in skipped}
    return WeightBytes(
        dense=sum(dense.values()),
        experts=sum(routed.values()),
        experts_per_layer=max((m.global_num_experts for m in experts), default=0),
        experts_per_token=max((m.top_k for m in experts), default=0),
    )


def _text_modules(model: Any) -> Iterable[Any]:
    """Each module once, of the language model and of the head that may lie beside it."""
    inner = model.get_language_model() if hasattr(model, "get_language_model") else model
    found = list(inner.modules())
    head = getattr(model, "lm_head", None)
    return [*found, head] if head is not None and all(head is not one for one in found) else found


def _is_head(module: Any) -> bool:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    return isinstance(module, ParallelLMHead)


def _is_table(module: Any) -> bool:
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    return isinstance(module, VocabParallelEmbedding) and not _is_head(module)


def _is_experts(module: Any) -> bool:
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    return isinstance(module, RoutedExperts)


def _storages(modules: Iterable[Any]) -> dict[int, int]:
    """Address -> bytes of the modules' own parameters."""
    found = {}
    for module in modules:
        for name, parameter in module.named_parameters(recurse=False):
            storage = parameter.untyped_storage()
            if storage.nbytes():
                found[storage.data_ptr()] = storage.nbytes()
            elif name == "weight" and _is_linear(module):
                found[id(module)] = _packed(module)
    return found


def _is_linear(module: Any) -> bool:
    from vllm.model_executor.layers.linear import LinearBase

    return isinstance(module, LinearBase)


def _packed(linear: Any) -> int:
    """On a CPU vLLM packs a linear layer's weight away and leaves an empty parameter."""
    inputs = getattr(linear, "input_size_per_partition", linear.input_size)
    outputs = getattr(linear, "output_size_per_partition", linear.output_size)
    return int(inputs * outputs * linear.weight.itemsize)


def draft_layers(layers: Mapping[str, Any], draft: Any) -> set[str]:
    """Names of those layers with a cache that are the draft's."""
    own = {id(module) for module in draft.modules()} if draft is not None else set()
    return {name for name, layer in layers.items() if id(layer) in own}


def kv_bytes(config: Any, draft: Collection[str]) -> CacheBytes:
    """What the caches of this KVCacheConfig of vLLM's take.

    Args:
        draft: names of the draft's layers.
    """
    from vllm.v1.kv_cache_interface import MambaSpec

    per_token = {False: 0.0, True: 0.0}
    state = blocks = 0
    for name, spec in _cache_specs(config):
        if isinstance(spec, MambaSpec):
            state += spec.state_content_size_bytes
            blocks = max(blocks, 1 + spec.num_speculative_blocks)
        else:
            per_token[name in draft] += spec.real_page_size_bytes / spec.block_size
    return CacheBytes(round(per_token[False]), round(per_token[True]), state, blocks)


def _cache_specs(config: Any) -> Iterable[tuple[str, Any]]:
    for group in config.kv_cache_groups:
        each = getattr(group.kv_cache_spec, "kv_cache_specs", {})  # of layers of several sizes
        for name in group.layer_names:
            yield name, each.get(name, group.kv_cache_spec)


def copy_bytes_per_s(device: Any) -> float:
    """Read plus written, the best of several copies of a large buffer."""
    import torch

    size = _CPU_BUFFER
    if device.type != "cpu":
        free, _ = torch.get_device_module(device).mem_get_info(device)
        size = min(_BUFFER, free // 4)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)  # written once, so that its pages are there
    best = min(_seconds_to_copy(target, source) for _ in range(_COPIES))
    del source, target
    if device.type != "cpu":
        torch.accelerator.empty_cache()
    return 2 * size / best


def _seconds_to_copy(target: Any, source: Any) -> float:
    import torch

    def drain() -> None:
        if target.device.type != "cpu":
            torch.accelerator.synchronize()

    drain()
    started = time.perf_counter()
    target.copy_(source)
    drain()
    return time.perf_counter() - started
