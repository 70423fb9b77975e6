# SPDX-License-Identifier: Apache-2.0
"""Stand-ins of a dry start, in its own process only: a CUDA platform that is described, not there, so
that vLLM's own CUDA code answers for it on a machine without a GPU; and models without memory.

Nothing else of the package replaces names of vLLM outside `compat`. Each stand-in says what breaks
without it, and when it can go; tests/contract/surface_described.py watches their names.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any


@dataclass(frozen=True, slots=True)
class Device:
    name: str  # as NVML says it: vLLM looks for words in it
    capability: tuple[int, int]
    memory: float  # GiB
    processors: int


DEVICES = {
    "h100": Device("NVIDIA H100 80GB HBM3", (9, 0), 79.19, 132),
    "h200": Device("NVIDIA H200", (9, 0), 139.8, 132),
    "b200": Device("NVIDIA B200", (10, 0), 178.3, 148),
}
_CUDA_MAJOR = 13
_COMPILED = frozenset(
    {
        "vllm._C_stable_libtorch", "vllm._moe_C_stable_libtorch", "vllm.cumem_allocator",
        "vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C",
    }
)  # fmt: skip
_OPERATORS = ("_C", "_moe_C", "_C_cache_ops", "_C_cuda_utils", "_vllm_fa2_C", "_vllm_fa3_C")
_LEAST_CAPABILITY = {  # of compiled questions that layers ask when they are imported
    f"cutlass_scaled_mm_supports_{kind}": least
    for kind, least in (("fp8", 89), ("block_fp8", 90), ("fp4", 100))
}
_count = 1  # devices
_has_context: Callable[[], bool] | None = None  # torch's own answer, before it is described


def lacks_packages(device: str) -> str | None:
    """Name the package without which vLLM would choose other kernels for a device; None: none is."""
    is_blackwell = DEVICES[device].capability >= (10, 0)
    return "flashinfer" if is_blackwell and find_spec("flashinfer") is None else None


def give_devices(count: int) -> None:
    global _count
    _count = max(count, 1)


def has_cuda_context() -> bool:
    import torch

    return (_has_context or torch.cuda.is_initialized)()


def look_at_classes_here() -> None:
    """Look at model classes in this process.

    Symptom: the first look at a class takes 15 s, in a process that knows no described platform, and
        its result goes into the user's cache.
    Seam: `registry._run_in_subprocess(look)`. REMOVE WHEN vLLM can look at them in its own process.
    """
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda look: look()


def describe(name: str) -> None:
    """Describe a CUDA platform; nothing of vLLM may be imported yet.

    Symptom: on a version "+cpu" Triton counts as missing, and V1 serves.
    Seam: an empty list of devices lets vLLM take Triton without a driver, as under Ray. REMOVE WHEN vLLM
        asks the platform for Triton.
    """
    device = DEVICES[name]
    sys.meta_path.insert(0, _Empty())
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    _describe_torch(device)
    _name_operators()
    _describe_triton(device)
    _describe_platform(device)


class _Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes empty modules of the CUDA build's compiled parts.

    Symptom: `vllm.platforms.cuda` cannot be imported: "No module named 'vllm._C_stable_libtorch'".
    REMOVE WHEN that module imports its kernels late.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self) if name in _COMPILED else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return types.ModuleType(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module empty."""


def _describe_torch(device: Device) -> None:
    """Answer for torch.cuda to code that does not ask vLLM's platform.

    Symptom: "Torch not compiled with CUDA enabled" when classes are imported. torch.version.cuda stays:
        torchvision compares it with its own. REMOVE WHEN vLLM asks its platform everywhere.
    """
    global _has_context
    import torch

    cuda: Any = torch.cuda
    _has_context = cuda.is_initialized
    major, minor = device.capability
    properties = types.SimpleNamespace(
        name=device.name, major=major, minor=minor, multi_processor_count=device.processors,
        total_memory=int(device.memory * 2**30), is_integrated=False, L2_cache_size=50 * 2**20,
        gcnArchName="",
    )  # fmt: skip
    cuda.is_available = lambda: True
    cuda.is_initialized = lambda: False
    cuda.device_count = lambda: _count
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_, **__: device.capability
    cuda.get_device_name = lambda *_, **__: device.name
    cuda.get_device_properties = lambda *_, **__: properties


class _Operator:
    """Stands for a compiled operator, and for its overloads; it cannot run."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> _Operator:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{self.__name__} is only described here")


def _name_operators() -> None:
    """Give the CUDA build's operators names, and answer the questions that layers ask of its kernels.

    Symptom: classes such as DFlash2's cannot be looked at: they take `torch.ops._C.silu_and_mul` by
        name when they are imported, or register a fake for it.
    REMOVE WHEN layers name operators in `forward`.
    """
    import torch

    namespace: Any = torch._ops._OpNamespace
    find, register = namespace.__getattr__, torch.library.register_fake

    def operator(self: Any, name: str) -> Any:
        try:
            return find(self, name)
        except AttributeError:
            if least := _LEAST_CAPABILITY.get(name):
                return lambda capability: capability >= least
            if self.name in _OPERATORS and not name.startswith("__"):
                return _Operator(f"{self.name}::{name}")
            raise

    def registered(op: Any, func: Any = None, /, **options: Any) -> Any:
        if isinstance(op, str) and op.partition("::")[0] in _OPERATORS:
            return (lambda given: given) if func is None else func
        return register(op, func, **options)

    namespace.__getattr__ = operator
    torch.library.register_fake = registered


def _describe_triton(device: Device) -> None:
    """Answer for Triton's driver.

    Symptom: "libcuda.so cannot found": kernels of gated delta nets ask for the driver's target when they
        are imported. REMOVE WHEN they ask when they run.
    """
    import torch

    try:
        from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
        from triton.runtime.driver import driver  # type: ignore[import-untyped]
    except ImportError:
        return
    shown = {
        "max_shared_mem": 227 * 1024, "multiprocessor_count": device.processors, "warpSize": 32,
    }  # fmt: skip
    target = GPUTarget("cuda", device.capability[0] * 10 + device.capability[1], 32)
    active: Any = types.SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_device_interface=lambda: torch.cuda,
        get_active_torch_device=lambda: torch.device("meta"),
        utils=types.SimpleNamespace(get_device_properties=lambda _: shown),
    )
    driver.set_active(active)


def _describe_platform(device: Device) -> None:
    """Put the platform in its place: vLLM's class, with NVML's answers.

    Symptom: `current_platform` is a CPU's, or the first question ends with NVMLError_LibraryNotFound.
    Seam: `platforms._current_platform`, and `vllm_version_matches_substr`, by which a CPU build switches
        Triton off. REMOVE WHEN vLLM can describe a CUDA device by itself.
    """
    import vllm.platforms as platforms

    platforms.vllm_version_matches_substr = lambda substr: False
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    # What vLLM's class asks of NVML.
    answers: dict[str, Callable[..., Any]] = {
        "get_device_capability": lambda _, device_id=0: DeviceCapability(*device.capability),
        "get_cuda_runtime_major": lambda _: _CUDA_MAJOR,
        "get_device_name": lambda _, device_id=0: device.name,
        "get_device_uuid": lambda _, device_id=0: f"GPU-{device_id}",
        "get_device_total_memory": lambda _, device_id=0: int(device.memory * 2**30),
        "device_count": lambda _: _count,
        "is_fully_connected": lambda _, physical_device_ids: True,
        "get_device_numa_node": lambda _, device_id=0: None,
        "get_all_device_numa_nodes": lambda _: None,
        "num_compute_units": lambda _, device_id=0: device.processors,
        "is_integrated_gpu": lambda _, device_id=0: False,
        "device_control_id_to_physical_device_id": lambda _, device_id: int(device_id),
        "log_warnings": lambda _: None,
    }
    methods = {name: classmethod(method) for name, method in answers.items()}
    described = type("DescribedCuda", (CudaPlatformBase,), {**methods, "__module__": __name__})
    globals()["DescribedCuda"] = described  # vLLM may look its class up by name
    platforms._current_platform = described()


class _Built(Exception):
    """Ends vLLM's loader of drafts once the draft is built."""


def build_models(config: Any) -> tuple[Any, Any]:
    """Build target and draft as vLLM's V2 runner does, on the meta device and up to their weights.

    Symptom: a draft's attention config and dtype are known to its loader only, which loads weights.
    Seam: the loader's `get_model`. REMOVE WHEN vLLM can build without loading.
    """
    _place_on_meta()
    _describe_groups(config.parallel_config)
    models = [_build(config, config.model_config)]

    def build_draft(*, vllm_config: Any, model_config: Any) -> None:
        models.append(_build(vllm_config, model_config))
        raise _Built  # its weights are not there to be shared

    method = config.speculative_config.method
    kind = method if method in ("dflash", "dspark") else "eagle"
    loader: Any = import_module(f"vllm.v1.worker.gpu.spec_decode.{kind}.utils")
    loader.get_model = build_draft
    with suppress(_Built):
        getattr(loader, f"load_{kind}_model")(models[0], config)
    return models[0], models[1]


def _build(vllm_config: Any, model_config: Any) -> Any:
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    dtype, here = set_default_torch_dtype(model_config.dtype), torch.device("meta")
    with set_current_vllm_config(vllm_config), dtype, here:
        return initialize_model(vllm_config=vllm_config, model_config=model_config)


def _place_on_meta() -> None:
    """Answer for devices that layers name when they are built.

    Symptom: gated delta nets allocate a norm on `current_device()`, experts make streams of CUDA.
    Seam: that method, and torch's classes. REMOVE WHEN layers take the default device.
    """
    import torch
    from vllm.platforms import current_platform

    platform: Any = type(current_platform)
    platform.current_device = classmethod(lambda _: torch.device("meta"))
    for name in ("Stream", "Event"):
        setattr(torch.cuda, name, type(name, (), {"__init__": lambda self, *_, **__: None}))


def _describe_groups(parallel: Any) -> None:
    """Describe the first of the stated ranks.

    Symptom: "tensor model parallel group is not initialized"; real groups need a process for each rank.
    Seam: the groups of `parallel_state`. REMOVE WHEN layers read sizes from the config.
    """
    from vllm.distributed import parallel_state

    def group(size: int) -> Any:
        ranks = types.SimpleNamespace(size=lambda: size, rank=lambda: 0)
        return types.SimpleNamespace(
            world_size=size, rank_in_group=0, local_rank=0, ranks=list(range(size)),
            is_first_rank=True, is_last_rank=size == 1, unique_name=f"described:{size}",
            device_group=ranks, cpu_group=ranks, device_communicator=None,
        )  # fmt: skip

    for name in ("_PP", "_DP", "_DCP", "_PCP"):
        setattr(parallel_state, name, group(1))
    for name in ("_WORLD", "_TP", "_EP"):
        setattr(parallel_state, name, group(parallel.tensor_parallel_size))
