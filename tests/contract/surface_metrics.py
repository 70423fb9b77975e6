"""What our gauges lean on in vLLM."""

from __future__ import annotations

from tests.contract.name import Name

METRICS = (
    Name(
        "vllm.v1.metrics.prometheus",
        "unregister_vllm_metrics",
        "leaves our gauges where they are",
        contains=("collector._name.startswith('vllm:')",),
    ),
    Name(
        "vllm.v1.engine.async_llm",
        "AsyncLLM.__init__",
        "why our gauges are no stat logger: one that is installed turns statistics on for all",
        contains=("self.log_stats = log_stats or has_custom_loggers",),
    ),
    Name(
        "vllm.utils.torch_utils",
        "kv_cache_dtype_str_to_dtype",
        "sizes of the gauges",
        parameters=("kv_cache_dtype", "model_config"),
    ),
    Name(
        "vllm.engine.arg_utils",
        "EngineArgs",
        "what the gauges go by",
        contains=(
            "disable_log_stats:",
            "kv_cache_dtype:",
            "mamba_ssm_cache_dtype:",
            "enable_prefix_caching:",
            "block_size:",
            "gdn_prefill_backend:",
            "tensor_parallel_size:",
        ),
    ),
)
