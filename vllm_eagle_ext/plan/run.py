# SPDX-License-Identifier: Apache-2.0
"""Computes the plan of a target for each K."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_eagle_ext.draft.draft_config import published_architecture
from vllm_eagle_ext.draft.registry import refuse_a_draft
from vllm_eagle_ext.draft.target_facts import read_named_target
from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.memory.device import Device
from vllm_eagle_ext.memory.footprint import (
    CacheSetting,
    Footprint,
    FullGraphs,
    default_graphs,
    footprint,
)
from vllm_eagle_ext.memory.geometry import (
    Attention,
    Target,
    is_hybrid,
    read_target,
    rope_table_bytes,
    served_dtype,
)
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS, Scheme
from vllm_eagle_ext.memory.state_scheme import choose, planned_prefix_caching, runner_obstacles
from vllm_eagle_ext.plan.model_files import Draft, Model, Weights, open_model, read_draft, read_weights
from vllm_eagle_ext.plan.request import GIB, KV_DTYPES, Memory, PlanRequest, read_memory, settle_device

_STATE_BLOCK_MULTIPLE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Holds what one K of a target takes on one rank."""

    request: PlanRequest
    target: Target
    architecture: str  # of the target
    memory: Memory
    device: Device
    release_from: str
    device_from: str
    weights: Weights
    draft: Draft | None
    tables: int  # bytes of sines and cosines on each rank
    budget: int  # bytes of one rank's KV cache
    setting: CacheSetting
    footprints: Mapping[Scheme | None, Footprint]  # by scheme; None: of a target without recurrent state
    auto: Scheme | None  # what `hybrid_state: auto` takes
    why: str

    @property
    def is_hybrid(self) -> bool:
        return self.auto is not None

    @property
    def taken(self) -> Footprint:
        return self.footprints[self.auto]

    @property
    def per_token(self) -> Footprint:
        return self.footprints["per_token"]

    @property
    def replay(self) -> Footprint:
        return self.footprints["replay"]

    @property
    def draft_layers(self) -> Sequence[Attention]:
        return self.draft.layers if self.draft else ()

    @property
    def prefill(self) -> str | None:
        """Name the kernels of gated delta nets; None: there are none, or a CPU's."""
        return self.device.prefill if self.is_hybrid and not self.device.on_cpu else None

    @property
    def graphs(self) -> FullGraphs | None:
        """Return where full CUDA graphs end, and what the requests that fit would ask; None on a CPU."""
        if self.device.capability is None:
            return None
        return default_graphs(
            k=self.setting.k, max_num_seqs=self.request.max_num_seqs, fit=self.taken.fit(self.budget),
            capability=self.device.capability, architecture=self.architecture,
        )  # fmt: skip

    @property
    def crashes(self) -> bool:
        """Return whether a start crashes.

        vLLM's V1 runner without Triton, as a CPU has it, cannot do prefix caching for a hybrid target.
        """
        return self.is_hybrid and self.setting.cpu and self.setting.prefix_caching

    @property
    def exit_code(self) -> int:
        return 0 if self.taken.fit(self.budget) and not self.crashes else 1

    def footprint(self, scheme: Scheme | None, **changes: Any) -> Footprint:
        """Return the footprint of a scheme with another setting."""
        return footprint(self.target, scheme, replace(self.setting, **changes), self.draft_layers)

    def longest(self) -> int:
        """Return the largest max_model_len of which one request fits with what `auto` takes; 0: none."""
        low, high = 0, self.setting.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            if self.footprint(self.auto, max_model_len=middle).fit(self.budget):
                low = middle
            else:
                high = middle - 1
        return low


def run_plans(request: PlanRequest, ks: Sequence[int]) -> list[Plan]:
    """Plan the target once for each K.

    Raises:
        EagleExtError: target, draft or options cannot be read.
    """
    request, model = _open_target(request)
    config = model.config
    # Settle prefix caching as a start would, then read the sizes.
    hybrid, architecture = is_hybrid(config), published_architecture(config)
    platform, caches = "cpu" if request.cpu else "cuda", request.prefix_caching
    if hybrid:
        caches = planned_prefix_caching(architecture, platform, caches)
    request = replace(request, prefix_caching=caches)
    _require_state_blocks(request, is_kept=hybrid and caches is not False)
    target = read_target(
        config, tp=request.tp, kv_bytes=KV_DTYPES[request.kv_dtype], fp32_state=request.cpu
    )
    length = request.max_model_len or target.max_position_embeddings
    weights = read_weights(model, request.weights_gib)
    keeps_all = not hybrid and all(layers.window is None for layers in target.attention)
    element_bytes = target.attention[0].element_bytes
    draft = read_draft(
        request, config, kv_bytes=element_bytes, length=length, k=max(ks), keeps_all=keeps_all
    )
    if length is None:
        raise OptionsError(
            field="--max-model-len", value=None, allowed="a positive integer",
            remedy="state it, as the target's config.json has no max_position_embeddings",
        )  # fmt: skip
    # What is left for the cache, on which device.
    memory = Memory(request.gpu_mem, "") if request.gpu_mem else read_memory(cpu=request.cpu)
    total = memory.gib * request.gpu_memory_utilization * GIB
    loaded = (weights.size + (draft.size if draft else 0)) / request.tp
    tables = rope_table_bytes(config) + (draft.tables if draft else 0)
    budget = max(0, int(total - loaded - tables - request.reserve_gib * GIB))
    device, release_from, device_from = settle_device(request, config, memory)
    alignment = request.attention_block or device.attention_alignment(
        target.attention[0].head_dim, element_bytes=element_bytes,
        non_causal_draft=bool(draft and draft.non_causal),
    )  # fmt: skip
    # One plan for each K.
    plans = []
    for k in ks:
        setting = CacheSetting(
            k=k, max_model_len=length, prefix_caching=caches is not False, cpu=request.cpu,
            attention_alignment=alignment, prefill_exports=hybrid and device.prefill_exports,
        )  # fmt: skip
        auto, why = None, ""
        if hybrid:
            auto, why = _auto(architecture, served_dtype(config), device, setting)
        schemes: Sequence[Scheme | None] = ("per_token", "replay") if hybrid else (None,)
        layers = draft.layers if draft else ()
        plans.append(Plan(
            request=request, target=target, architecture=architecture, memory=memory, device=device,
            release_from=release_from, device_from=device_from, weights=weights, draft=draft,
            tables=tables, budget=budget, setting=setting, auto=auto, why=why,
            footprints={each: footprint(target, each, setting, layers) for each in schemes},
        ))  # fmt: skip
    return plans


def _open_target(request: PlanRequest) -> tuple[PlanRequest, Model]:
    """Open the target; the request gets the name that the draft has for it, if it has none."""
    if request.kv_dtype not in KV_DTYPES:
        raise OptionsError(
            field="--kv-dtype", value=request.kv_dtype, allowed=", ".join(KV_DTYPES),
            remedy="choose one of them; others pack keys and values in ways that are not modelled",
        )  # fmt: skip
    name = request.target or read_named_target(str(request.draft), download_dir=request.download_dir)
    model = open_model(
        name, field="--target", revision=request.target_revision, download_dir=request.download_dir
    )
    refuse_a_draft(model.config, model.name)
    return replace(request, target=name), model


def _require_state_blocks(request: PlanRequest, *, is_kept: bool) -> None:
    """Refuse a size of state blocks as vLLM does, and where there are none.

    Args:
        is_kept: the prefix cache keeps recurrent states.

    Raises:
        OptionsError: it keeps none, or no multiple of what the convolution's kernel takes.
    """
    size = request.mamba_block_size
    if size is not None and (not is_kept or size % _STATE_BLOCK_MULTIPLE):
        raise OptionsError(
            field="--mamba-block-size", value=size,
            allowed=f"a multiple of {_STATE_BLOCK_MULTIPLE}, for a hybrid target with prefix caching",
            remedy="leave it out, or give --prefix-caching for a hybrid target",
        )  # fmt: skip


def _auto(architecture: str, dtype: str, device: Device, setting: CacheSetting) -> tuple[Scheme, str]:
    """Choose as an engine does on the runner that vLLM chooses by itself: V2 on a GPU, V1 on a CPU."""
    if architecture and architecture not in REPLAYING_TARGETS:
        return "per_token", f"replay does not know {architecture}"
    runner, caches = "v1" if device.on_cpu else "v2", setting.prefix_caching
    obstacles = runner_obstacles(device.platform, runner, dtype, prefix_caching=caches)
    choice = choose("auto", k=setting.k, device=device, prefix_caching=caches, obstacles=list(obstacles))
    return choice.scheme, choice.reason
