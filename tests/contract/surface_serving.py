"""What the package leans on where a server is configured, schedules, shares weights and takes images."""

from __future__ import annotations

from tests.contract.name import Name

_PROPOSER = "vllm.v1.spec_decode.llm_base_proposer"
_RUNNER = "vllm.v1.worker.gpu_model_runner"

SERVING = (
    Name(
        _RUNNER,
        "GPUModelRunner.propose_draft_token_ids",
        "V1: replaced, to find the token behind a chunk",
        accepts=("self", "scheduler_output", "sampled_token_ids"),
    ),
    Name(
        _RUNNER,
        "GPUModelRunner._prepare_inputs",
        "V1: lengths behind a step, and whose prompts go on",
        contains=("self.optimistic_seq_lens_cpu", "self.discard_request_mask.np[:num_reqs]"),
    ),
    Name(
        _RUNNER,
        "GPUModelRunner._input_fits_in_drafter",
        "V1 drafts for all requests of a step or for none, by the draft's max_model_len",
        contains=("common_attn_metadata.max_seq_len", "self.effective_drafter_max_model_len"),
    ),
    Name(
        _PROPOSER,
        "SpecDecodeBaseProposer._update_positions_dependent_metadata",
        "V1 clamps an EAGLE draft's positions at the target's max_model_len",
        contains=("max_model_len=self.max_model_len", "out_clamped_positions"),
    ),
    Name(
        _PROPOSER,
        "SpecDecodeBaseProposer._maybe_share_embeddings",
        "V1 shares a target's embeddings as they are, adapters included",
        contains=("self.model.model.embed_tokens = target_embed_tokens",),
    ),
    Name("vllm.lora.layers.base", "BaseLayerWithLoRA", "how an adapted layer is told"),
    Name(
        "vllm.lora.layers.vocab_parallel_embedding",
        "VocabParallelEmbeddingWithLoRA.__init__",
        "where the plain layer is",
        contains=("self.base_layer = base_layer",),
    ),
    Name("vllm.config.model", "ModelConfig.is_multimodal_model", "whether V1 looks for an image token"),
    Name(
        _PROPOSER,
        "SpecDecodeBaseProposer.load_model",
        "V1: targets whose image token it finds by the name of their class",
        contains=("if self.get_model_name(target_model) in [",),
    ),
    Name(
        "vllm.v1.core.kv_cache_utils",
        "_get_kv_cache_groups_uniform_page_size",
        "V1: where full-attention layers are cut in groups",
        contains=("max_num_layers < min_num_layers * 1.5",),
        moved_to="vllm.v1.core.kv_cache_planning",
    ),
    Name(
        "vllm.model_executor.models.deepseek_v2",
        "DeepseekV2Model.forward",
        "aux layer 0 cannot be read: there is no residual yet",
        contains=("aux_hidden_state = hidden_states + residual",),
    ),
    Name(
        "vllm.config.speculative",
        "SpeculativeConfig",
        "what rules of the engine read",
        contains=tuple(
            f"{field}:"
            for field in (
                "draft_parallel_config",
                "enable_adaptive_verification",
                "max_model_len",
                "num_speculative_tokens_per_batch_size",
                "parallel_drafting",
                "quantization",
                "rejection_sample_method",
                "use_local_argmax_reduction",
            )
        ),
    ),  # fmt: skip
    Name(
        "vllm.config.vllm",
        "VllmConfig",
        "what rules of the engine read",
        contains=tuple(
            f"{field}:"
            for field in (
                "additional_config",
                "cache_config",
                "kv_transfer_config",
                "lora_config",
                "model_config",
                "parallel_config",
                "scheduler_config",
                "speculative_config",
                "weight_transfer_config",
            )
        ),
    ),  # fmt: skip
    Name(
        "vllm.config.vllm",
        "VllmConfig.use_v2_model_runner",
        "asked of a config that is half built",
        contains=("self.attention_config.hisparse_config", "'watermark_config'"),
    ),
    Name(
        "vllm.config.vllm",
        "VllmConfig._post_init_kv_transfer_config",
        "asked of a config that is half built",
        contains=("self.cache_config.kv_offloading_size", "self.cache_config.kv_offloading_backend"),
    ),
    Name(
        "vllm.engine.arg_utils",
        "EngineArgs.create_engine_config",
        "the seam at which the engine is judged",
        contains=("self.create_speculative_config(",),
    ),
    Name(
        "vllm.engine.arg_utils",
        "EngineArgs",
        "what a half-built config is made of",
        contains=tuple(
            f"{field}:"
            for field in (
                "additional_config",
                "attention_config",
                "enable_lora",
                "enable_prefix_caching",
                "gdn_prefill_backend",
                "kv_offloading_backend",
                "kv_offloading_size",
                "kv_transfer_config",
                "scheduler_cls",
                "use_replayssm",
                "watermark_config",
            )
        ),
    ),  # fmt: skip
    Name(
        "vllm.config.model",
        "ModelConfig.supports_replayssm",
        "whether vLLM can replay a target's states",
    ),
    Name(
        "vllm.config.attention",
        "AttentionConfig",
        "HiSparse, which only V2 has",
        contains=("hisparse_config:",),
    ),
    Name(
        "vllm.v1.worker.gpu.spec_decode.dspark.utils",
        "load_dspark_model",
        "DSpark is built on draft_tensor_parallel_size ranks",
        contains=("draft_parallel_config.tensor_parallel_size",),
    ),
    Name(
        "vllm.transformers_utils.config",
        "HFConfigParser.parse",
        "reads a draft's config.json through the function that drops its nulls",
        contains=(
            "PreTrainedConfig.get_config_dict(",
            "AutoConfig.from_pretrained(",
            ".from_dict(config_dict",
        ),
    ),
)
