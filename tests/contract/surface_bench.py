"""What `vllm-eagle bench` and `verify` ask of an engine, from outside and within its worker."""

from __future__ import annotations

from tests.contract.name import Name

_V1, _V2 = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"

_ENGINE = (
    Name("vllm.entrypoints.llm", "LLM.__init__", "the engine in its process", accepts=("model",)),
    Name("vllm.entrypoints.llm", "LLM.collective_rpc", "asks the workers", accepts=("method", "args")),
    Name("vllm.entrypoints.llm", "LLM.reset_prefix_cache", "every load begins with none"),
    Name("vllm.entrypoints.llm", "LLM", "steps it by hand", contains=("self.llm_engine = ",)),
    Name(
        "vllm.v1.engine.llm_engine",
        "LLMEngine.add_request",
        "submits a request",
        accepts=("request_id", "prompt", "params"),
    ),
    Name("vllm.v1.engine.llm_engine", "LLMEngine.step", "tokens of a step", parameters=("self",)),
    Name(
        "vllm.v1.engine.llm_engine",
        "LLMEngine.abort_request",
        "ends a load once its steps were timed",
        accepts=("request_ids",),
    ),
    Name(
        "vllm.v1.engine.llm_engine",
        "LLMEngine.has_unfinished_requests",
        "the next load waits for the end of the last",
        parameters=("self",),
    ),
    Name(
        "vllm.outputs",
        "RequestOutput.__init__",
        "what a step says of a request",
        accepts=("request_id", "outputs", "finished"),
    ),
    Name(
        "vllm.outputs",
        "CompletionOutput",
        "the same, and drafts of a request",
        contains=("token_ids:", "logprobs:", "spec_decode_metrics:"),
    ),
    Name(
        "vllm.engine.arg_utils",
        "EngineArgs",
        "asks for them",
        contains=("per_request_spec_decode_metrics:",),
    ),
    Name(
        "vllm.v1.metrics.stats",
        "RequestSpecDecodeMetrics",
        "steps by accepted drafts, and drafted tokens",
        contains=("histogram:", "num_draft_tokens:", "self.histogram[num_accepted] += 1"),
    ),
    Name("vllm.sampling_params", "RequestOutputKind", "new tokens alone", contains=("DELTA",)),
    Name(
        "vllm.sampling_params",
        "SamplingParams",
        "settings of a load",
        contains=("output_kind:", "ignore_eos:", "detokenize:", "logprobs:", "seed:", "extra_args:"),
    ),
    Name(
        "vllm.v1.spec_decode.metrics",
        "SpecDecodingProm.__init__",
        "counters of drafts",
        contains=(
            "'vllm:spec_decode_num_drafts'",
            "'vllm:spec_decode_num_draft_tokens'",
            "'vllm:spec_decode_num_accepted_tokens_per_pos'",
        ),
    ),
    Name("vllm.v1.metrics.reader", "Counter", "what get_metrics gives", contains=("value:",)),
    Name("vllm.v1.metrics.reader", "Vector", "the same, per position", contains=("values:",)),
    Name("vllm.config.parallel", "ParallelConfig", "the probe", contains=("worker_extension_cls:",)),
    Name(
        "vllm.v1.worker.worker_base",
        "WorkerWrapperBase.init_worker",
        "mixes it in, and refuses names that the worker has",
        contains=("attr.startswith('__')", "worker_class.__bases__ + (worker_extension_cls,)"),
    ),
    Name(
        "vllm.v1.sample.rejection_sampler",
        "rejection_sample",
        "synthetic acceptance on a CPU; by place, as the next entry shows",
        accepts=(
            "draft_token_ids",
            "num_draft_tokens",
            "target_logits",
            "sampling_metadata",
            "synthetic_mode",
            "synthetic_conditional_rates",
        ),
    ),
    Name(
        "vllm.v1.sample.rejection_sampler",
        "RejectionSampler.forward",
        "what the wrapper takes by place and by name",
        contains=(
            "metadata.num_draft_tokens,",
            "synthetic_mode=self.synthetic_mode",
            "synthetic_conditional_rates=self.synthetic_conditional_rates",
        ),
    ),
    Name(
        "vllm.config.speculative",
        "SpeculativeConfig",
        "synthetic acceptance, and a draft from its files beside a dummy target",
        contains=(
            "rejection_sample_method:",
            "synthetic_acceptance_rates:",
            "synthetic_acceptance_length:",
            "draft_load_config:",
        ),
    ),
)

_MEMORY = (
    Name(
        "vllm.utils.cpu_resource_utils",
        "get_memory_node_info",
        "what is free, as a CPU's worker measures it",
        accepts=("node_id",),
        contains=("total_memory=", "available_memory="),
    ),
    Name("vllm.utils.cpu_resource_utils", "get_visible_memory_node", "the nodes of it", optional=True),
    Name(
        "vllm.v1.worker.cpu_worker",
        "CPUWorker.__init__",
        "a share of the node has to be free",
        contains=("memory_status.total_memory * memory_fraction", "kv_cache_memory_bytes is None"),
        until="0.33",  # it asks for no free share any more: ours is only careful then
    ),
)

_CAUSES = (
    Name(
        "vllm.v1.executor.multiproc_executor",
        "WorkerProc.worker_main",
        "a worker logs its error, which is noted",
        contains=("logger.exception('WorkerProc failed to start.')",),
    ),
    Name(
        "vllm.v1.executor.multiproc_executor",
        "WorkerProc.wait_for_ready",
        "points at it",
        contains=("WorkerProc initialization failed",),
    ),
    Name(
        "vllm.v1.engine.core",
        "EngineCoreProc.run_engine_core",
        "the core logs its error",
        contains=("logger.exception('EngineCore failed to start.')",),
    ),
    Name(
        "vllm.v1.engine.utils",
        "wait_for_engine_startup",
        "points at it",
        contains=("Engine core initialization failed.",),
    ),
    Name("vllm.engine.arg_utils", "EngineArgs.create_engine_config", "an error below is of a start"),
)

_RUNNERS = (
    *(
        Name(module, f"GPUModelRunner.{method}", "what the probe reads of both runners")
        for module in (_V1, _V2)
        for method in ("get_model", "get_draft_model")
    ),
    *(
        Name(module, "GPUModelRunner", "the same", contains=("self.attn_groups", "self.kv_cache_config"))
        for module in (_V1, _V2)
    ),
)

_FACTS = (
    Name(
        "vllm.v1.kv_cache_interface",
        "KVCacheConfig",
        "blocks of the caches",
        contains=("num_blocks:", "kv_cache_groups:"),
    ),
    Name(
        "vllm.config.compilation",
        "CompilationConfig",
        "layers with a cache, by name",
        contains=("static_forward_context:",),
    ),
)

BENCH = _ENGINE + _MEMORY + _CAUSES + _RUNNERS + _FACTS
