"""What is unusual in the cases of `start_cases`, by name."""

from __future__ import annotations

from typing import Any

from tests.support.checkpoints import VOCAB

Keys = dict[str, Any]
SCHEDULE = "num_speculative_tokens_per_batch_size"

# Keys of speculative_config beside method, model and K.
SPECULATIVE: dict[str, Keys] = {
    "unknown": {"x": 1},
    "misspelt": {"quantisation": "fp8"},
    "of another engine": {"num_steps": 3},
    "ranks of the target": {"tensor_parallel_size": 1},
    "old name of the draft": {"draft_model": "x"},
    "ranks of a word": {"draft_tensor_parallel_size": "x"},
    "no ranks": {"draft_tensor_parallel_size": 0},
    "unknown rejection": {"rejection_sample_method": "x"},
    "null for a flag": {"parallel_drafting": None},
    "object for a flag": {"parallel_drafting": {}},
    "quantisation of a number": {"quantization": 5},
    "unknown quantisation": {"quantization": "other"},
    "fp8": {"quantization": "fp8"},
    "length in words": {"max_model_len": "1k"},
    "length with a dash": {"max-model-len": "64"},
    "length beyond the draft's": {"max_model_len": 513},
    "synthetic without figures": {"rejection_sample_method": "synthetic"},
    "figures without synthetic": {"synthetic_acceptance_length": 2},
    "synthetic beyond K": {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 9},
    "too few rates": {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5]},
    "rates that rise": {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0, 1, 0]},
    "rejection of a later release": {"rejection_sample_method": "fly"},
    "two vocabularies": {"use_heterogeneous_vocab": True},
    "shared index": {"index_share_for_mtp_iteration": True},
    "candidates of DSpark": {"dspark_draft_topk": 3},
    "load config of a word": {"draft_load_config": "x"},
    "unknown backend": {"attention_backend": "NOPE"},
    "backend in small letters": {"attention_backend": "flash_attn"},
    "K as text": {"num_speculative_tokens": "5"},
    "method of a number": {"method": 5},
    "eager of a word": {"enforce_eager": "x"},
    "schedule": {SCHEDULE: [[1, 8, 3], [9, 32, 0]]},
    "schedule beyond K": {SCHEDULE: [[1, 8, 9]]},
    "schedule with a gap": {SCHEDULE: [[2, 8, 3]]},
    "schedule of a word": {SCHEDULE: "x"},
}

# Keys of a post-norm draft's config.json.
CONFIG: dict[str, Keys] = {
    "tie_word_embeddings null": {"tie_word_embeddings": None},
    "torch_dtype auto": {"torch_dtype": "auto"},
    "torch_dtype x": {"torch_dtype": "x"},
    "dtype 5": {"dtype": 5},
    "initializer_range 1": {"initializer_range": 1},
    "initializer_range x": {"initializer_range": "x"},
    "pad_token_id x": {"pad_token_id": "x"},
    "eos_token_id [x]": {"eos_token_id": ["x"]},
    "hidden_act 5": {"hidden_act": 5},
    "hidden_act nope": {"hidden_act": "nope"},
    "vocab_size as text": {"vocab_size": str(VOCAB)},
    "draft_vocab_size 95": {"draft_vocab_size": 95},
    "hidden_size null": {"hidden_size": None},
    "intermediate_size 97": {"intermediate_size": 97},
    "num_attention_heads 3": {"num_attention_heads": 3},
    "num_key_value_heads 0": {"num_key_value_heads": 0},
    "head_dim 31": {"head_dim": 31},
    "num_hidden_layers 2": {"num_hidden_layers": 2},
    "max_position_embeddings 0": {"max_position_embeddings": 0},
    "max_position_embeddings 512.5": {"max_position_embeddings": 512.5},
    "n_positions x": {"n_positions": "x"},
    "num_labels -1": {"num_labels": -1},
    "id2label x": {"id2label": {"x": 1}},
    "n_predict 3": {"n_predict": 3},
    "text_config {}": {"text_config": {}},
    "auto_map 5": {"auto_map": 5},
    "compression_config fp8": {"compression_config": {"quant_method": "fp8"}},
    "to_dict 1": {"to_dict": 1},
    "update 5": {"update": 5},
    "quant_method nope": {"quantization_config": {"quant_method": "nope"}},
    "quant_method 5": {"quantization_config": {"quant_method": 5}},
    "quant_method gptq": {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}},
    "quantization_config [1]": {"quantization_config": [1]},
    "rope_type x": {"rope_scaling": {"rope_type": "x", "factor": 2.0}},
    "rope_type yarn alone": {"rope_scaling": {"rope_type": "yarn"}},
    "rope factor 0.5": {"rope_scaling": {"rope_type": "linear", "factor": 0.5}},
    "rope_scaling [1]": {"rope_scaling": [1]},
    "rope_theta null": {"rope_theta": None},
    "rope_theta x": {"rope_theta": "x"},
    "model_type nope": {"model_type": "nope"},
    "model_type 5": {"model_type": 5},
    "model_type qwen3": {"model_type": "qwen3"},
    "architectures nope": {"architectures": ["Nope"]},
    "architectures as text": {"architectures": "LlamaForCausalLMEagle3"},
    "architectures null": {"architectures": None},
    "layer_types [x]": {"layer_types": ["x"]},
    "rms_norm_eps x": {"rms_norm_eps": "x"},
    "num_experts x": {"num_experts": "x"},
    "attention_bias true": {"attention_bias": True},
    "mlp_bias x": {"mlp_bias": "x"},
    "sliding_window x": {"sliding_window": "x"},
    "pretraining_tp x": {"pretraining_tp": "x"},
    "norm_output false": {"norm_output": False},
    "fc_norm yes": {"fc_norm": "yes"},
    "attn_implementation 5": {"attn_implementation": 5},
    "use_cache null": {"use_cache": None},
    "biases null": {"attention_bias": None, "mlp_bias": None},
}

# Keywords of EngineArgs beside a dense target, with further fields of StartCase.
DENSE: dict[str, Keys] = {
    "as usual": {},
    "replay of no states": {"options": {"hybrid_state": "replay"}},
    "adaptive option": {"k": 4, "options": {"adaptive_verification": True}},
    "K 70 in 64": {"k": 70, "engine": {"max_model_len": 64}},
    "K 65": {"k": 65},
    "K 7 in 8": {"k": 7, "engine": {"max_model_len": 8}},
    "longer than the target": {"engine": {"max_model_len": 2049}},
    "TP 2": {"engine": {"tensor_parallel_size": 2}},
    "TP 3": {"engine": {"tensor_parallel_size": 3}},
    "TP 2, draft on one": {
        "engine": {"tensor_parallel_size": 2}, "speculative": {"draft_tensor_parallel_size": 1}
    },
    "PP 2": {"engine": {"pipeline_parallel_size": 2}},
    "DP 2": {"engine": {"data_parallel_size": 2}},
    "decode on 2": {"engine": {"decode_context_parallel_size": 2}},
    "microbatches": {"engine": {"enable_dbo": True}},
    "LoRA": {"engine": {"enable_lora": True}},
    "offloading": {"engine": {"kv_offloading_size": 1.0}},
    "weight transfer": {"engine": {"weight_transfer_config": {"backend": "nccl"}}},
}  # fmt: skip

# The same beside the tiny hybrid target, with its DFlash draft.
HYBRID: dict[str, Keys] = {
    "as usual": {},
    "prefix caching": {"engine": {"enable_prefix_caching": True}},
    "schedule, one block per token": {
        "options": {"hybrid_state": "per_token"}, "speculative": {SCHEDULE: [[1, 4, 2], [5, 8, 0]]}
    },
    "K beyond the block": {"k": 8},
    "another scheduler": {"engine": {"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}},
    "vLLM's replay": {"engine": {"use_replayssm": True}},
    "adaptive verification": {"speculative": {"enable_adaptive_verification": True}},
    "float16": {"engine": {"dtype": "float16"}},
}  # fmt: skip

PUBLISHED = [
    "angelslim_qwen3_8b", "baichuan_m3_235b", "d2t_duplicates", "ids_beyond_n", "kimi_k2_5_mla",
    "kimi_k3_dspark", "lmsys_gpt_oss_120b", "mimo_v2_5_pro", "minimax_m3_e31",
    "muse_glimmer_30b_assistant", "nemotron_3_5_lightning", "nvidia_gpt_oss_120b_v2",
    "redhat_deepseek_v4_flash_dflash", "redhat_gemma4_31b", "redhat_gpt_oss_20b",
    "redhat_qwen3_30b_a3b", "redhat_qwen3_8b_p_eagle", "specforge_longcat_flash",
    "specforge_qwen3_8b_dspark", "speculators_dflash2", "speculators_e31_llama",
    "syvai_qwen3_8_27b_dflash2_w4a16", "torchspec_minimax_m25", "torchspec_qwen3_8b_llama_gated",
    "yuhuili_llama31_8b", "zlab_gemma4_31b", "zlab_glm_5_1", "zlab_kimi_k2_6", "zlab_qwen3_6_27b",
    "zlab_qwen3_8b", "zlab_qwen3_coder_next",
]  # fmt: skip
