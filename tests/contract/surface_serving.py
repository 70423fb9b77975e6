"""What the package leans on where a server is configured, schedules, shares weights and takes images."""

from __future__ import annotations

from tests.contract.name import Name
from vllm_eagle_ext.engine_rules.speculative_keys import KEYS, MISTAKEN, SINCE_033
from vllm_eagle_ext.engine_rules.target import NAMED

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
        contains=NAMED,
    ),
    Name(
        "vllm.engine.arg_utils",
        "EngineArgs",
        "what the preflight asks of an engine around a draft",
        contains=(
            "pipeline_parallel_size: int",
            "disable_hybrid_kv_cache_manager: bool | None",
            "kv_transfer_config: KVTransferConfig | None",
            "kv_offloading_size: float | None",
        ),
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
        "the keys that a user may give, and the one that it has only to refuse it",
        contains=tuple(f"{key}:" for key in (*sorted(set(KEYS) - SINCE_033), MISTAKEN)),
    ),
    Name(
        "vllm.config.speculative",
        "SpeculativeConfig",
        "the keys that 0.33 added",
        contains=tuple(f"{key}:" for key in sorted(SINCE_033)),
        since="0.33",
    ),
    Name(
        "vllm.engine.arg_utils",
        "EngineArgs",
        "what decides the model runner, and whether vLLM replays states itself",
        contains=tuple(
            f"{field}:"
            for field in (
                "attention_config",
                "distributed_executor_backend",
                "enable_dbo",
                "ubatch_size",
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
        "vllm.config.vllm",
        "VllmConfig._get_v2_model_runner_unsupported_features",
        "what only V1 has",
        contains=(
            "distributed_executor_backend == 'external_launcher'",
            "'suffix'",
            "'custom_class'",
            "parallel_drafting",
            "'use_heterogeneous_vocab'",
            "use_ubatching",
        ),
    ),  # fmt: skip
    Name(
        "vllm.config.vllm",
        "VllmConfig._get_v2_model_runner_unsupported_features",
        "what only V1 of 0.32 has",
        contains=("'medusa'", "'mlp_speculator'"),
        until="0.33",
    ),
    Name(
        "vllm.config.speculative",
        "SpeculativeConfig._verify_args",
        "the same",
        contains=("if self.tensor_parallel_size is not None:", "draft_tensor_parallel_size"),
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
