"""The one list. Each entry is checked by reading source; the installed vLLM is imported as well."""

from __future__ import annotations

from tests.contract.name import Name
from tests.contract.surface_bench import BENCH
from tests.contract.surface_described import DESCRIBED, DESCRIBED_CUDA
from tests.contract.surface_hybrid import HYBRID
from tests.contract.surface_k_by_step import K_BY_STEP
from tests.contract.surface_metrics import METRICS
from tests.contract.surface_second_heads import SECOND_HEADS
from tests.contract.surface_serving import SERVING
from tests.contract.surface_weights import WEIGHTS

_MODELS = "vllm.model_executor.models"

_PARENTS = {
    "llama_eagle3": "Eagle3LlamaForCausalLM",
    "qwen3_eagle3": "Eagle3Qwen3ForCausalLM",
    "deepseek_eagle3": "Eagle3DeepseekV2ForCausalLM",
    "qwen3_dflash": "DFlashQwen3ForCausalLM",
}

PACKAGE = (
    Name("vllm.version", "__version__", "the tested range"),
    Name(
        "vllm.plugins",
        "load_general_plugins",
        "calls register() in each process",
        parameters=(),
        contains=("func()",),
    ),
    Name(
        "vllm.plugins",
        "DEFAULT_PLUGINS_GROUP",
        "the group of our entry point",
        contains=("'vllm.general_plugins'",),
    ),
    Name(
        f"{_MODELS}.registry",
        "_ModelRegistry.register_model",
        "registers the drafters by lazy string",
        parameters=("self", "model_arch", "model_cls"),
    ),
    Name(f"{_MODELS}.registry", "_ModelRegistry.get_supported_archs", "keeps registration idempotent"),
    Name(
        "vllm.engine.arg_utils",
        "EngineArgs.create_speculative_config",
        "the preflight's seam",
        parameters=("self", "target_model_config", "target_parallel_config"),
        contains=("SpeculativeConfig(**self.speculative_config)", "self.spec_method"),
    ),
    Name(
        "vllm.v1.sample.rejection_sampler",
        "expand_batch_to_tokens",
        "settings of sampled requests on a CPU",
        parameters=("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
    ),
    Name(
        "vllm.engine.arg_utils",
        "EngineArgs",
        "what the preflight reads of the request",
        contains=(
            "additional_config:",
            "speculative_config:",
            "download_dir:",
            "hf_token:",
            "spec_model:",
            "spec_tokens:",
        ),
    ),
    Name(
        "vllm.engine.arg_utils",
        "EngineArgs.__post_init__",
        "loads the plugins before any config is made",
        contains=("load_general_plugins()",),
    ),
    Name(
        "vllm.config.speculative",
        "SpeculativeConfig",
        "what the preflight reads and writes of the result",
        contains=("method:", "draft_model_config:"),
    ),
    Name(
        "vllm.config.speculative",
        "SpeculativeConfig.update_arch_",
        "makes vLLM look our architecture up",
        parameters=("self",),
        contains=("inspect_model_cls",),
    ),
    Name(
        "vllm.config.speculative",
        "SpeculativeConfig.compute_hash",
        "aux layer ids are part of the compile cache's key",
        contains=("eagle_aux_hidden_state_layer_ids",),
    ),
    Name(
        "vllm.transformers_utils.configs.eagle",
        "EAGLEConfig.__init__",
        "leaves names that start with Eagle3 alone and copies every key",
        contains=("arch.startswith('Eagle3')", "setattr(self, k, v)"),
    ),
    *(
        Name("vllm.config.model", f"ModelConfig.{method}", "what the preflight knows of the target")
        for method in ("get_total_num_hidden_layers", "get_hidden_size", "get_vocab_size")
    ),
    Name("vllm.config.model", "ModelConfig", "the same", contains=("max_model_len:", "hf_text_config")),
    *(
        Name(
            f"{_MODELS}.{module}",
            f"{name}.__init__",
            "parent of a drafter, called with keywords",
            parameters=("self", "vllm_config", "prefix"),
        )
        for module, name in _PARENTS.items()
    ),
    *(
        Name(
            f"{_MODELS}.{module}",
            f"{name}.load_weights",
            "takes published names, `t2d` and `midlayer.` apart",
            parameters=("self", "weights"),
            contains=("'d2t' in name", "process_eagle_weight"),
        )
        for module, name in _PARENTS.items()
    ),
    *(
        Name(
            f"{_MODELS}.{module}",
            name,
            "reads the keys that the preflight writes",
            contains=("num_aux_hidden_states", "'fc_norm'", "'norm_output'", "'target_hidden_size'"),
        )
        for module, name in (
            ("qwen3_eagle3", "Qwen3Eagle3Model.__init__"),
            ("deepseek_eagle3", "DeepseekV2Eagle3Model.__init__"),
        )
    ),
    Name(
        f"{_MODELS}.llama",
        "LlamaAttention.forward",
        "parent of the gated attention, which repeats it with a gate",
        parameters=("self", "positions", "hidden_states"),
        contains=("qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)", "self.attn(q, k, v)"),
    ),
    Name(
        f"{_MODELS}.qwen3",
        "Qwen3Attention.forward",
        "the same",
        parameters=("self", "positions", "hidden_states"),
        contains=("self.q_norm(q_by_head)", "self.k_norm(k_by_head)", "self.attn(q, k, v)"),
    ),
    Name(
        "vllm.model_executor.layers.linear",
        "QKVParallelLinear.__init__",
        "builds the projection of a gated layer",
        accepts=("hidden_size", "head_size", "total_num_heads", "total_num_kv_heads", "quant_config"),
    ),
    Name(
        f"{_MODELS}.qwen3_dflash",
        "DFlashQwen3ForCausalLM",
        "the model class is a seam",
        contains=("model_cls = DFlashQwen3Model",),
    ),
    Name(
        f"{_MODELS}.qwen3_dflash",
        "DFlashQwen3Model._normalize_context_k",
        "overridden on a CPU, whose kernel takes one layer's weights",
        parameters=("self", "all_k"),
        contains=("self._k_norm_weights", "self._rms_norm_eps"),
    ),
    Name(
        f"{_MODELS}.qwen3_dflash",
        "DFlashQwen3Model.embed_input_ids",
        "overridden for embeddings that are scaled",
        parameters=("self", "input_ids"),
    ),
    Name(
        f"{_MODELS}.qwen3_dflash",
        "_dflash_layer_causal",
        "causality goes by layer type where no flag is set",
        parameters=("config", "layer_idx"),
        contains=("'is_causal'", "get('causal')", "_SLIDING_ATTENTION"),
    ),
    Name(
        "vllm.transformers_utils.configs.speculators.algos",
        "update_peagle",
        "drops fc_norm and norm_output, which the preflight puts back",
        contains=("'norm_before_fc'", "'pard_token'"),
    ),
    Name(
        "vllm.transformers_utils.configs.speculators.algos",
        "update_eagle3",
        "takes norm_before_residual for true where it is missing",
        contains=("'norm_before_residual', True",),
    ),
    Name(
        "vllm.transformers_utils.configs.speculators.algos",
        "update_dflash",
        "one causality for all layers, which the preflight takes back",
        contains=("'sliding_window_non_causal', True", "['causal']"),
    ),
    Name("vllm.envs", "VLLM_USE_V2_MODEL_RUNNER", "which runner will draft"),
    Name("vllm.triton_utils.importing", "HAS_TRITON", "which runner will draft"),
    Name(
        "vllm.config.vllm",
        "VllmConfig.use_v2_model_runner",
        "the order of reasons that model_runner follows",
        contains=("envs.VLLM_USE_V2_MODEL_RUNNER", "not HAS_TRITON"),
    ),
    Name(
        "vllm.config.speculative",
        "SpeculativeConfig.hf_config_override",
        "takes drafts of some model types for MTP heads",
        contains=("'qwen3_next'", "'deepseek_v3'", "'longcat_flash'", "'exaone_moe'"),
    ),
    Name(
        f"{_MODELS}.llama_eagle3",
        "Eagle3LlamaForCausalLM.combine_hidden_states",
        "one norm per aux layer, in the order of capture",
        contains=("hidden_states.chunk(self.model.num_aux_hidden_states, dim=-1)",),
    ),
    Name(
        f"{_MODELS}.llama_eagle3",
        "LlamaModel.__init__",
        "reads the keys that the preflight writes",
        contains=("'num_aux_hidden_states'", "'fc_norm'", "'norm_output'"),
    ),
    Name(
        f"{_MODELS}.llama_eagle3",
        "LlamaModel.forward",
        "post-norm feedback",
        contains=("hidden_states if self.norm_output else hidden_prenorm",),
    ),
    Name(
        f"{_MODELS}.interfaces",
        "EagleModelMixin._set_aux_hidden_state_layers",
        "captures in ascending order, each layer once",
        contains=("tuple(sorted(set(layers)))",),
    ),
    Name(
        f"{_MODELS}.interfaces",
        "EagleModelMixin._maybe_add_hidden_state",
        "an aux hidden state is the residual stream",
        contains=("hidden_states + residual",),
    ),
    Name(
        "vllm.v1.worker.gpu_model_runner",
        "GPUModelRunner._get_eagle3_aux_layers_from_config",
        "V1 reads the top-level list as it stands",
        contains=("getattr(hf_config, 'eagle_aux_hidden_state_layer_ids', None)",),
    ),
    Name(
        "vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils",
        "get_eagle3_aux_layers_from_config",
        "V2 reads the top-level list as it stands",
        contains=("getattr(hf_config, 'eagle_aux_hidden_state_layer_ids', None)",),
    ),
    Name(
        "vllm.v1.spec_decode.llm_base_proposer",
        "SpecDecodeBaseProposer.propose",
        "V1 admits subclasses of its drafters",
        contains=("isinstance(model, (Eagle3LlamaForCausalLM",),
    ),
)

TESTS = (
    Name("vllm.entrypoints.llm", "LLM.get_metrics", "drafts and accepted tokens per position"),
    Name("vllm.model_executor.model_loader.utils", "process_weights_after_loading", "module tests"),
    Name("vllm.utils.torch_utils", "set_default_torch_dtype", "module tests"),
    Name("vllm.v1.worker.gpu.model_runner", "GPUModelRunner", "V2", contains=("self.speculator",)),
    Name("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "V1", contains=("self.drafter",)),
    Name(
        "vllm.v1.worker.gpu_model_runner",
        "GPUModelRunner.propose_draft_token_ids",
        "the recorder reads V1's drafts",
    ),
    Name(
        "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator",
        "TargetDependentARSpeculator.propose",
        "the recorder reads V2's drafts",
        accepts=("input_batch",),
    ),
)

SURFACE = (
    PACKAGE
    + SECOND_HEADS
    + K_BY_STEP
    + HYBRID
    + METRICS
    + SERVING
    + WEIGHTS
    + BENCH
    + DESCRIBED
    + DESCRIBED_CUDA
    + TESTS
)
