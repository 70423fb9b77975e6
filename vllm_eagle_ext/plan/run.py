# SPDX-License-Identifier: Apache-2.0
"""Settles which release and device a plan is for and its memory; plans a target for each K."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

from vllm_eagle_ext.draft.draft_config import published_architecture
from vllm_eagle_ext.draft.registry import refuse_a_draft
from vllm_eagle_ext.draft.target_facts import read_named_target, text_config
from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.memory.device import (
    ASSUMED_GPU,
    NEWEST_RELEASE,
    PREFILLS,
    Device,
    key_dim,
    node_bytes,
)
from vllm_eagle_ext.memory.footprint import (
    GIB,
    CacheSetting,
    Footprint,
    FullGraphs,
    default_graphs,
    footprint,
)
from vllm_eagle_ext.memory.geometry import (
    Attention,
    Target,
    read_target,
    rope_table_bytes,
    served_dtype,
)
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS, Scheme
from vllm_eagle_ext.memory.state_scheme import choose, planned_prefix_caching, runner_obstacles
from vllm_eagle_ext.plan.model_files import Draft, Model, Weights, open_model, read_draft, read_weights
from vllm_eagle_ext.start import described
from vllm_eagle_ext.start.check import find_platform, read_release
from vllm_eagle_ext.version import installed_vllm

# Bytes of a key's or value's element; None: as the model's dtype.
KV_DTYPES: dict[str, int | None] = {
    "auto": None, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Defaults are vLLM's for a server on a GPU of 70 GiB or more; on a CPU it runs 128 requests."""

    target: str | None  # None: as the draft names it
    target_revision: str | None = None
    revision: str | None = None  # of the draft
    gpu_mem: float | None = None  # GiB of one GPU; None: of this machine's
    tp: int = 1
    max_model_len: int | None = None  # None: the target's
    max_num_seqs: int = 1024
    gpu_memory_utilization: float = 0.92
    prefix_caching: bool | None = None  # None: as `check` would have it served
    kv_cache_dtype: str = "auto"
    draft: str | None = None
    eagle_ext: Mapping[str, Any] = field(default_factory=dict)  # only vLLM's planner follows it
    weights_gib: float | None = None
    reserve_gib: float = 2.0  # of activations, CUDA graphs and the runtime, which a start measures
    platform: str = "auto"  # as of a check; a GPU where gpu_mem is given
    download_dir: str | None = None
    vllm: str | None = None  # release; None: the one installed, else the newest known
    gdn_prefill: str = "auto"  # as vLLM's --gdn-prefill-backend

    @property
    def settled_platform(self) -> str:
        """Name the platform as a check takes it, or raise a SpeculativeConfigError."""
        platform = find_platform(self.platform)[0]
        return self.platform if self.platform != "auto" else "cuda" if self.gpu_mem else platform

    @property
    def cpu(self) -> bool:
        return self.settled_platform == "cpu"

    @property
    def gpu(self) -> described.Device | None:
        """Return the GPU that the platform names."""
        return described.DEVICES.get(self.settled_platform.partition(":")[2])


@dataclass(frozen=True, slots=True)
class Memory:
    gib: float  # of one GPU, or of one NUMA node
    origin: str  # for the reader; empty: as the user said
    capability: tuple[int, int] | None = None  # compute capability of the GPU, where one was read
    cuda: int | None = None  # major version of torch's CUDA, where a GPU was read


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Holds what one K of a target takes on one rank."""

    request: PlanRequest
    target: Target
    memory: Memory
    device: Device
    release_from: str
    device_from: str
    weights: Weights
    draft: Draft | None
    tables: int  # bytes of sines and cosines on each rank
    budget: int  # bytes of one rank's KV cache
    setting: CacheSetting
    footprints: Mapping[Scheme, Footprint]
    auto: Scheme  # what `hybrid_state: auto` takes
    why: str

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
        """Name the kernels of gated delta nets; None: a CPU's."""
        return None if self.device.on_cpu else self.device.prefill

    @property
    def graphs(self) -> FullGraphs | None:
        """Return where full CUDA graphs end, and what the requests that fit would ask; None on a CPU."""
        if self.device.capability is None:
            return None
        return default_graphs(
            k=self.setting.k, max_num_seqs=self.request.max_num_seqs, fit=self.taken.fit(self.budget),
            capability=self.device.capability,
        )  # fmt: skip

    @property
    def exit_code(self) -> int:
        return 0 if self.taken.fit(self.budget) else 1

    def footprint(self, scheme: Scheme, **changes: Any) -> Footprint:
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
    """Plan a hybrid target once for each K.

    Raises:
        EagleExtError: target, draft or options cannot be read, or the target keeps no recurrent states.
    """
    request, model = _open_target(request)
    config = model.config
    # Read the sizes, and settle prefix caching as a start would.
    fp32_state = request.cpu and resolve_name("torch.cpu:_is_avx512_bf16_supported")()
    kv_bytes = KV_DTYPES[request.kv_cache_dtype]
    target = read_target(config, tp=request.tp, kv_bytes=kv_bytes, fp32_state=fp32_state)
    architecture = published_architecture(config)
    caches = _prefix_caching(request, architecture)
    request = replace(request, prefix_caching=caches)
    length = request.max_model_len or target.max_position_embeddings
    weights = read_weights(model, request.weights_gib)
    element_bytes = target.attention.element_bytes
    draft = None
    if request.draft is not None:
        draft = read_draft(
            request.draft, config, kv_bytes=element_bytes, tp=request.tp,
            revision=request.revision, download_dir=request.download_dir,
        )  # fmt: skip
    if length is None:
        raise OptionsError(
            field="--max-model-len", value=None, allowed="a positive integer",
            remedy="state it, as the target's config.json has no max_position_embeddings",
        )  # fmt: skip
    # What is left for the cache, on which device.
    memory = read_memory(request)
    total = memory.gib * request.gpu_memory_utilization * GIB
    loaded = (weights.size + (draft.size if draft else 0)) / request.tp
    tables = rope_table_bytes(config) + (draft.tables if draft else 0)
    budget = max(0, int(total - loaded - tables - request.reserve_gib * GIB))
    device, release_from, device_from = _settle_device(request, config, memory)
    alignment = device.attention_alignment(
        target.attention.head_dim, element_bytes=element_bytes,
        non_causal_draft=bool(draft and draft.non_causal),
    )  # fmt: skip
    # One plan for each K.
    plans = []
    for k in ks:
        setting = CacheSetting(
            k=k, max_model_len=length, prefix_caching=caches is not False, cpu=request.cpu,
            attention_alignment=alignment, prefill_exports=device.prefill_exports,
        )  # fmt: skip
        auto, why = _auto(architecture, served_dtype(config), device, setting)
        schemes: Sequence[Scheme] = ("per_token", "replay")
        layers = draft.layers if draft else ()
        plans.append(Plan(
            request=request, target=target, memory=memory, device=device, release_from=release_from,
            device_from=device_from, weights=weights, draft=draft, tables=tables, budget=budget,
            setting=setting, auto=auto, why=why,
            footprints={each: footprint(target, each, setting, layers) for each in schemes},
        ))  # fmt: skip
    return plans


def has_states(request: PlanRequest) -> bool:
    """Tell whether the target has gated delta nets, whose states this module counts.

    Raises:
        EagleExtError: the target cannot be read.
    """
    return text_config(_open_target(request)[1].config).get("linear_num_key_heads") is not None


def _open_target(request: PlanRequest) -> tuple[PlanRequest, Model]:
    """Open the target; the request gets the name that the draft has for it, if it has none."""
    if request.kv_cache_dtype not in KV_DTYPES:
        raise OptionsError(
            field="--kv-cache-dtype", value=request.kv_cache_dtype, allowed=", ".join(KV_DTYPES),
            remedy="choose one of them; others pack keys and values in ways that are not modelled",
        )  # fmt: skip
    name = request.target or read_named_target(
        str(request.draft), revision=request.revision, download_dir=request.download_dir
    )
    model = open_model(
        name, field="--target", revision=request.target_revision, download_dir=request.download_dir
    )
    refuse_a_draft(model.config, model.name)
    return replace(request, target=name), model


def _prefix_caching(request: PlanRequest, architecture: str) -> bool | None:
    """Settle prefix caching of a hybrid target; None is vLLM's default."""
    if request.cpu and request.prefix_caching:
        raise OptionsError(
            field="--prefix-caching", value=True, allowed="no prefix caching of a hybrid target on a "
            "CPU, whose V1 runner cannot keep the recurrent states of drafts with it",
            remedy="use --no-prefix-caching",
        )  # fmt: skip
    return planned_prefix_caching(architecture, "cpu" if request.cpu else "cuda", request.prefix_caching)


def _auto(architecture: str, dtype: str, device: Device, setting: CacheSetting) -> tuple[Scheme, str]:
    """Choose as an engine does on the runner that vLLM chooses by itself: V2 on a GPU, V1 on a CPU."""
    if architecture and architecture not in REPLAYING_TARGETS:
        return "per_token", f"replay does not know {architecture}"
    runner, caches = "v1" if device.on_cpu else "v2", setting.prefix_caching
    obstacles = runner_obstacles(device.platform, runner, dtype, prefix_caching=caches)
    choice = choose("auto", k=setting.k, device=device, prefix_caching=caches, obstacles=list(obstacles))
    return choice.scheme, choice.reason


def read_memory(request: PlanRequest) -> Memory:
    """Take the memory as given or described, or read the smallest, as vLLM takes a share of each.

    Raises:
        OptionsError: there is no GPU here, or no vLLM to ask about a CPU's node.
    """
    cpu = request.cpu
    if request.gpu_mem:
        return Memory(request.gpu_mem, "")
    if request.gpu:
        return Memory(request.gpu.memory, request.gpu.name)
    if find_spec("vllm" if cpu else "torch") is None:
        raise _unknown_memory(f"{'vLLM' if cpu else 'torch'}, which would tell it, is not installed")
    if cpu:
        return Memory(node_bytes() / GIB, "a NUMA node of this machine")
    import torch

    if not torch.cuda.is_available():
        raise _unknown_memory("no GPU is seen on this machine")
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    least = min(devices, key=lambda device: device.total_memory)
    cuda = int((torch.version.cuda or "0").partition(".")[0])
    return Memory(least.total_memory / GIB, least.name, (least.major, least.minor), cuda)


def _unknown_memory(why: str) -> OptionsError:
    return OptionsError(
        field="--gpu-mem", value=None, allowed=f"GiB of one GPU; {why}",
        remedy="state it, such as --gpu-mem 80, or plan for --platform cpu, this machine's",
    )  # fmt: skip


def _settle_device(
    request: PlanRequest, config: Mapping[str, Any], memory: Memory
) -> tuple[Device, str, str]:
    """Return the device with its release, and where release and device are from."""
    installed = installed_vllm()
    if request.vllm is not None:
        release, release_from = read_release(request.vllm), "as given"
    elif installed is not None:
        release, release_from = installed.partition("+")[0], "installed"
    else:
        release, release_from = NEWEST_RELEASE, "assumed"
    gpu = request.gpu
    if gpu or request.cpu:
        capability, device_from = gpu.capability if gpu else None, "as given"
    else:
        capability = memory.capability or ASSUMED_GPU
        device_from = "this machine's" if memory.capability else "assumed"
    if request.gdn_prefill not in PREFILLS:
        raise OptionsError(
            field="--gdn-prefill", value=request.gdn_prefill, allowed=", ".join(PREFILLS),
            remedy="leave it out for what vLLM takes by itself",
        )  # fmt: skip
    device = Device(
        release=release, platform="cpu" if request.cpu else "cuda", capability=capability,
        cuda=memory.cuda or Device().cuda,
        gdn_prefill=request.gdn_prefill, key_dim=key_dim(text_config(config)),
    )  # fmt: skip
    return device, release_from, device_from
