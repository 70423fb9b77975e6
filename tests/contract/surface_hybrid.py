"""What hybrid targets lean on in vLLM."""

from __future__ import annotations

from tests.contract.name import Name

_GDN = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"
_CPU_GDN = "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention"
_METADATA = "vllm.v1.attention.backends.gdn_attn"
_HYBRID = "vllm.v1.worker.gpu.model_states.mamba_hybrid"
_RECOVERY = "vllm.v1.worker.gpu.model_states.recoverssm"
_SCHEDULER = "vllm.v1.core.sched.scheduler"
_TARGETS = {
    "qwen3_next": ("Qwen3NextForCausalLM",),
    "qwen3_5": (
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    ),
    "interns2_preview": ("InternS2PreviewForConditionalGeneration",),
    "interns2_mobius": ("InternS2MobiusForConditionalGeneration",),
    "minicpmv4_6": ("MiniCPMV4_6ForConditionalGeneration",),
    "minicpmv4_7": ("MiniCPMV4_7ForConditionalGeneration",),
}

HYBRID = (
    Name(
        _SCHEDULER,
        "Scheduler.schedule",
        "pads a new request with one token, unless there is a schedule of K",
        contains=(
            "self.dynamic_sd_lookup is None",
            "num_new_tokens == 1",
            "num_spec_tokens_to_schedule = self.dynamic_sd_lookup[",
        ),
    ),
    Name(
        _SCHEDULER,
        "Scheduler.add_request",
        "where a prompt of one token is seen",
        parameters=("self", "request"),
    ),
    Name(
        _SCHEDULER,
        "Scheduler.__init__",
        "the schedule, K, and the most requests of a step",
        contains=("self.dynamic_sd_lookup", "self.num_spec_tokens =", "self.max_num_running_reqs ="),
    ),
    Name("vllm.v1.request", "Request.num_tokens", "tells a prompt of one token"),
    Name("vllm.v1.request", "Request.is_finished", "one that no longer waits"),
    Name("vllm.v1.core.sched.async_scheduler", "AsyncScheduler", "a parent of our scheduler"),
    Name(
        "vllm.engine.arg_utils",
        "EngineArgs.create_engine_config",
        "reads what the preflight set in it, once the SpeculativeConfig is built",
        contains=(
            "self.create_speculative_config(",
            "scheduler_cls=self.scheduler_cls",
            "disable_hybrid_kv_cache_manager=self.disable_hybrid_kv_cache_manager",
        ),
    ),
    *(
        Name(f"vllm.model_executor.models.{module}", name, "parent of a replaying target")
        for module, names in _TARGETS.items()
        for name in names
    ),
    Name(_GDN, "QwenGatedDeltaNetAttention", "the layer that is adopted"),
    Name(
        _GDN,
        "QwenGatedDeltaNetAttention._forward_core",
        "prompts and plain decodes; verify rows are ours",
        parameters=("self", "mixed_qkv", "b", "a", "core_attn_out"),
    ),
    Name(
        _GDN,
        "QwenGatedDeltaNetAttention.forward_cuda",
        "runs on a CPU, too, when a layer replays",
        contains=("torch.ops.vllm.qwen_gdn_attention_core(", "self.enable_fused_gdn_spec_decode"),
    ),
    Name(
        _GDN,
        "qwen_gdn_attention_core",
        "calls _forward_core on every platform",
        contains=("self._forward_core(",),
    ),
    Name(
        "vllm.model_executor.offloader.base",
        "get_offloader",
        "whether weights are offloaded, known before layers are built",
    ),
    Name("vllm.model_executor.offloader.base", "NoopOffloader", "weights that are not"),
    Name(
        "vllm.model_executor.offloader.prefetch",
        "PrefetchOffloader._hook_module_forward",
        "a layer's forward has its own weights",
        contains=("torch.ops.vllm.wait_prefetch(", "original_forward(*args, **kwargs)"),
    ),
    Name(
        "vllm.v1.attention.backend",
        "AttentionBackend.supports_device_cpu_query_lens_mismatch",
        "lets adaptive verification run with replay",
        parameters=("cls",),
    ),
    Name(
        "vllm.v1.attention.backend",
        "AttentionMetadataBuilder.get_varlen_cudagraph_max_query_len",
        "the same, of full graphs",
        parameters=("cls", "vllm_config", "kv_cache_spec"),
    ),
    Name(
        "vllm.config.speculative",
        "SpeculativeConfig",
        "asked when the scheme of recurrent states is chosen",
        contains=("num_speculative_tokens_per_batch_size:", "enable_adaptive_verification:"),
    ),
    Name(
        "vllm.platforms.interface",
        "Platform.get_device_capability",
        "by what the scheme of recurrent states is chosen on a GPU",
        parameters=("cls", "device_id"),
    ),
    Name(
        "vllm.model_executor.layers.mamba.abstract",
        "MambaBase.get_kv_cache_spec",
        "number of state blocks, and what is in them",
        parameters=("self", "vllm_config"),
        contains=("num_speculative_blocks=", "shapes=tuple(self.get_state_shape())"),
    ),
    Name(
        "vllm.model_executor.layers.mamba.abstract",
        "MambaBase.bind_kv_cache",
        "views of the raw blocks, in order of the shapes",
        parameters=("self", "kv_cache"),
        contains=("kv_cache.squeeze(dim=(1, 2))",),
    ),
    Name(
        _METADATA,
        "GDNAttentionMetadataBuilder.build",
        "classifies the rows",
        parameters=(
            "self",
            "common_prefix_len",
            "common_attn_metadata",
            "num_accepted_tokens",
            "num_decode_draft_tokens_cpu",
            "fast_build",
        ),
    ),  # fmt: skip
    Name(
        "vllm.v1.attention.backends.recoverssm_metadata",
        "RecoverSSMMetadata.commit_recoverssm_state",
        "V2's commit hook",
        parameters=("self", "num_accepted_tokens"),
    ),
    Name(
        f"{_HYBRID}",
        "MambaHybridModelState.postprocess_state",
        "V2 commits after sampling",
        contains=("self.recoverssm.commit_step(",),
    ),
    Name(
        f"{_HYBRID}",
        "MambaHybridModelState.prepare_attn",
        "V2 records a step's metadata",
        contains=("self.recoverssm.record_step(", "builder.mamba_aligned_state_indices ="),
    ),
    Name(
        "vllm.v1.worker.gpu.attn_utils",
        "build_attn_metadata",
        "V2 builds one KV-cache group's metadata and has the others update it",
        contains=("attn_metadata_builder.supports_update_block_table", ".update_block_table("),
    ),
    Name(
        "vllm.v1.worker.gpu_model_runner",
        "GPUModelRunner._build_attention_metadata",
        "V1 does the same",
        contains=("builder.supports_update_block_table", "builder.update_block_table("),
    ),
    Name(
        _METADATA,
        "GDNAttentionMetadataBuilder.update_block_table",
        "another group's metadata of a step",
        parameters=("self", "metadata", "blk_table", "slot_mapping"),
        contains=("regather_state_indices(blk_table)", "self.mamba_aligned_state_indices"),
    ),
    Name(
        "vllm.v1.attention.backends.utils",
        "mamba_get_block_table_tensor",
        "state blocks with prefix caching, where vLLM does not gather them ahead",
        parameters=("block_table", "seq_lens", "kv_cache_spec", "mamba_cache_mode"),
    ),
    Name(
        f"{_RECOVERY}",
        "RecoverSSMState.record_step",
        "its kernel is compiled ahead",
        parameters=("self", "attn_metadata", "attn_groups", "for_capture"),
    ),
    Name(
        f"{_RECOVERY}",
        "RecoverSSMState.commit_step",
        "one metadata of a step answers",
        accepts=("num_sampled", "idx_mapping", "state_indices", "num_accepted_tokens"),
        contains=("postprocess_meta is None", "num_computed_tokens"),
    ),
    Name(
        "vllm.v1.worker.gpu.model_states",
        "resolve_model_state_cls",
        "a target brings its state class",
        contains=("model.get_model_state_cls()",),
    ),
    Name(
        "vllm.v1.worker.gpu_model_runner",
        "GPUModelRunner._update_states_after_model_execute",
        "V1's commit",
        parameters=("self", "output_token_ids", "scheduler_output"),
    ),
    Name("vllm.model_executor.models.config", "MODELS_CONFIG_MAP", "a replaying target keeps its entry"),
    Name(
        "vllm.config.speculative",
        "SpeculativeConfig.update_arch_",
        "use_architecture does the same for a target",
        contains=("get_model_arch_config()", "._architecture = arch"),
    ),
    Name(_CPU_GDN, "cpu_gdn_attention_core", "prompts and plain decodes on a CPU"),
    Name(_CPU_GDN, "_causal_conv1d_update_cpu", "convolution of verify rows", accepts=("x",)),
    Name(_CPU_GDN, "_unpacked_conv_weight", "convolution of verify rows", parameters=("layer",)),
    Name(_CPU_GDN, "is_arm_bf16", "which convolution vLLM chooses", parameters=()),
    Name(
        "vllm.model_executor.layers.utils",
        "dispatch_cpu_unquantized_gemm",
        "which CPUs pack the weights of convolutions",
        contains=(
            "(is_arm_bf16 or torch.cpu._is_avx512_bf16_supported()) and is_causal_conv1d_weight",
            "layer.weight.dtype == torch.bfloat16",
        ),
    ),
    Name(
        "vllm._custom_ops",
        "fused_sigmoid_gating_delta_rule_update_spec_cpu",
        "the recurrence on a CPU",
        accepts=("initial_state_source", "spec_state_indices", "num_accepted_tokens", "cu_seqlens"),
    ),
    Name(
        "vllm.model_executor.layers.mamba.ops.causal_conv1d",
        "causal_conv1d_update",
        "convolution of verify rows",
        accepts=("conv_state_indices", "num_accepted_tokens", "query_start_loc", "max_query_len"),
    ),
    Name(
        "vllm.v1.worker.gpu.attn_utils",
        "get_kv_cache_spec",
        "the specs that a start counts",
        parameters=("vllm_config",),
    ),
    Name(
        "vllm.v1.core.kv_cache_utils",
        "get_kv_cache_groups",
        "the groups that a start counts",
        parameters=("vllm_config", "kv_cache_spec"),
        moved_to="vllm.v1.core.kv_cache_planning",
    ),
    Name(
        _GDN,
        "_resolve_gdn_prefill_backend",
        "whether a prefill exports states; restated for plan and gauges",
        contains=("head_k_dim == 128", "get_cuda_runtime_major() >= 13", "is_device_capability(90)"),
    ),
    Name(
        "vllm.config.vllm",
        "VllmConfig._set_cudagraph_sizes",
        "where full graphs end; restated for plan",
        contains=("1024 if current_platform.is_device_capability_family(100) else 512",),
    ),
    Name(
        "vllm.v1.kv_cache_interface",
        "MambaSpec",
        "the state block",
        contains=("num_speculative_blocks:",),
    ),
)
