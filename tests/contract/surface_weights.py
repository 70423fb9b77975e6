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
        "vllm.model_executor.layers.vocab_parallel_embedding",
        "UnquantizedEmbeddingMethod.process_weights_after_loading",
        "packs a head of kept rows anew, and leaves its weight",
        contains=("dispatch_cpu_unquantized_gemm(layer, remove_weight=False)",),
    ),
    Name(
        "vllm.model_executor.layers.linear",
        "UnquantizedLinearMethod",
        "a plain head of a quantised model",
    ),
    Name(
        "vllm.model_executor.layers.quantization.base_config",
        "QuantizationConfig.get_quant_method",
        "says before the load how a target's head is quantised",
        parameters=("self", "layer", "prefix"),
    ),
    Name(
        "vllm.distributed.communication_op",
        "tensor_model_parallel_all_reduce",
        "rows that other ranks have",
    ),
    Name(
        "vllm.v1.spec_decode.llm_base_proposer",
        "SpecDecodeBaseProposer._maybe_share_lm_head",
        "V1 assigns the target's head, from which rows are kept",
        contains=("self.model.lm_head = target_language_model.lm_head",),
    ),
    Name(
        "vllm.v1.worker.gpu.spec_decode.eagle.utils",
        "load_eagle_model",
        "V2 does for EAGLE-3",
        contains=("eagle_model.lm_head = ",),
    ),
    Name(
        "vllm.v1.worker.gpu.spec_decode.dflash.utils",
        "load_dflash_model",
        "V2 does for DFlash",
        contains=("dflash_model.lm_head = target_lm_head",),
    ),
    Name(
        "vllm.distributed.weight_transfer.nccl_engine",
        "NCCLWeightTransferEngine.finish_weight_update",
        "a layerwise reload, which kept rows follow",
        contains=("finalize_layerwise_reload(self.model, self.model_config)",),
    ),
    Name(
        "vllm.distributed.weight_transfer.ipc_engine",
        "IPCWeightTransferEngine.finish_weight_update",
        "the same",
        contains=("finalize_layerwise_reload(self.model, self.model_config)",),
    ),
    Name(
        "vllm.model_executor.offloader.prefetch",
        "PrefetchOffloader",
        "fills layers from its copies once it has buffers",
        contains=("self.buffer_pool: StaticBufferPool | None = None",),
    ),
)
