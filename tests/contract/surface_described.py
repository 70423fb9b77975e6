"""What a dry start stands in for, or calls to plan: names of vLLM's in `start/described.py` and
`start/dry_child.py`."""

from __future__ import annotations

from tests.contract.name import Name

_PLATFORMS = "vllm.platforms"
_SPECULATORS = "vllm.v1.worker.gpu.spec_decode"
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
    *(
        Name(
            f"{_SPECULATORS}.{kind}.utils",
            f"load_{kind}_model",
            "builds the draft of a plan, up to its weights",
            contains=("get_model(vllm_config=", "model_config=draft_model_config)"),
        )
        for kind in ("eagle", "dflash", "dspark")
    ),
    Name(
        "vllm.model_executor.model_loader.utils",
        "initialize_model",
        "builds a model of a plan",
        accepts=("vllm_config", "model_config"),
    ),
    Name(
        "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn",
        "QwenGatedDeltaNetAttention.__init__",
        "names a device for its norm",
        contains=("device=current_platform.current_device()",),
    ),
    *(
        Name("vllm.distributed.parallel_state", f"get_{kind}_group", "described", contains=(held,))
        for kind, held in {"tp": "_TP", "pp": "_PP", "ep": "_EP", "world": "_WORLD"}.items()
    ),
    Name(
        "vllm.v1.attention.backends.utils",
        "resolve_kv_cache_layout",
        "settles the layout before a plan",
        parameters=("vllm_config", "supported_layouts", "kv_cache_specs"),
    ),
    Name(
        "vllm.v1.worker.worker_base",
        "WorkerBase.get_supported_kv_cache_layouts",
        "a plan does what it does",
        contains=("get_supported_kv_cache_layouts(backends)",),
    ),
    Name(
        "vllm.v1.core.kv_cache_utils",
        "get_kv_cache_configs",
        "plans",
        accepts=("vllm_config", "kv_cache_specs", "available_memory"),
        moved_to="vllm.v1.core.kv_cache_planning",
    ),
    Name(
        "vllm.platforms.interface",
        "Platform.update_block_size_for_backend",
        "sizes blocks before a plan",
        parameters=("cls", "vllm_config"),
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
