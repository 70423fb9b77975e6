"""What a dry start stands in for: names of vLLM's that `preflight/described.py` answers or replaces."""

from __future__ import annotations

from tests.contract.name import Name

_PLATFORMS = "vllm.platforms"
_CUDA = f"{_PLATFORMS}.cuda"

DESCRIBED = (
    Name(
        "vllm.model_executor.models.registry",
        "_run_in_subprocess",
        "a dry start looks at classes in its own process",
        parameters=("fn",),
    ),
    Name(_PLATFORMS, "vllm_version_matches_substr", "a CPU build is no CPU's", parameters=("substr",)),
    Name(
        _PLATFORMS,
        "__getattr__",
        "the described platform lies in `_current_platform`",
        contains=("if _current_platform is None", "return _current_platform"),
    ),
    Name(
        "vllm.engine.arg_utils",
        "AsyncEngineArgs.add_cli_args",
        "reads the words after --",
        accepts=("parser",),
    ),
    Name(
        "vllm.engine.arg_utils",
        "EngineArgs.create_engine_config",
        "is what a dry start does",
        accepts=("self", "usage_context"),
    ),
    Name(
        "vllm.engine.arg_utils",
        "EngineArgs.__post_init__",
        "names of checkpoints are places where the hub is off",
        contains=("huggingface_hub.constants.HF_HUB_OFFLINE",),
    ),
)

# The class of a GPU's wheel cannot be imported without its compiled parts: read, not imported.
DESCRIBED_CUDA = tuple(
    Name(_CUDA, name, "answered for a described GPU", accepts=accepts)
    for name, accepts in {
        "CudaPlatformBase.get_device_capability": ("device_id",),
        "CudaPlatformBase.get_device_name": ("device_id",),
        "CudaPlatformBase.get_device_total_memory": ("device_id",),
        "NvmlCudaPlatform.is_fully_connected": ("physical_device_ids",),
        "NvmlCudaPlatform.log_warnings": (),
    }.items()
)
