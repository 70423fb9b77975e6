"""What weights lean on that reach a draft after its start."""

from __future__ import annotations

from tests.contract.name import Name

_LOADER = "vllm.model_executor.model_loader"
_RELOAD = f"{_LOADER}.reload.layerwise"
_DFLASH = "vllm.model_executor.models.qwen3_dflash"

WEIGHTS = (
    Name(
        f"{_LOADER}.utils",
        "process_weights_after_loading",
        "ends a start: called on a model that has the method",
        contains=("model.process_weights_after_loading()",),
    ),
    Name(
        f"{_LOADER}.base_loader",
        "BaseModelLoader.load_model",
        "the same for every format",
        contains=("process_weights_after_loading(model, model_config, target_device)",),
    ),
    Name(f"{_LOADER}.utils", "get_draft_load_config", "dummy weights", parameters=("vllm_config",)),
    Name(
        f"{_LOADER}.weight_utils",
        "initialize_single_dummy_weight",
        "dummy weights of one shape are the same ones: told apart as long as this holds",
        contains=("generator.manual_seed(seed)",),
    ),
    Name(
        _RELOAD,
        "finalize_layerwise_processing",
        "the end of an update, of which attention layers hear last",
        contains=("is_deferred_attention_layer(layer)", "deferred_attn.append((layer, info))"),
    ),
    Name(
        _RELOAD,
        "initialize_layerwise_reload",
        "where weights are meanwhile",
        contains=("info.kernel_tensors = get_layer_params_buffers(layer)",),
    ),
    Name(_RELOAD, "get_layerwise_info", "the same", parameters=("layer",)),
    Name(
        "vllm.model_executor.layers.attention",
        "is_deferred_attention_layer",
        "what is called at the end of an update",
        contains=("AttentionLayerBase", "process_weights_after_loading"),
    ),
    Name("vllm.model_executor.layers.attention_layer_base", "AttentionLayerBase", "the same"),
    Name(
        _DFLASH,
        "DFlashQwen3Model._build_context_kv_buffers",
        "copies of weights that an update must reach",
        contains=("self._fused_kv_weight", "self._fused_kv_bias", "self._k_norm_weights"),
    ),
    Name(
        _DFLASH,
        "DFlashQwen3ForCausalLM.load_weights",
        "builds them whenever weights arrive",
        contains=("self.model._build_fused_kv_buffers()",),
    ),
    Name(
        "vllm.model_executor.layers.vocab_parallel_embedding",
        "VocabParallelEmbedding.__init__",
        "a rank's rows of a shared module",
        contains=("self.shard_indices = ", "self.shard_indices.org_vocab_start_index"),
    ),
    Name(
        "vllm.model_executor.offloader.prefetch",
        "PrefetchOffloader",
        "fills layers from its copies once it has buffers",
        contains=("self.buffer_pool: StaticBufferPool | None = None",),
    ),
)
