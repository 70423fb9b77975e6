"""Targets of the sizes of `checkpoints.py` with random weights, which the drafts of `drafts.py` fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.support.checkpoints import HEADS, HIDDEN, INTER, LAYERS, VOCAB, write_target
from tests.support.drafts import LATENT, NOPE, ROTARY, VALUE

# Where there is AMX vLLM takes another kernel, for bf16 and multiples of 32 alone.
LATENT_ENGINE = {"block_size": 16, "attention_backend": "CPU_MLA"}
LATENT_SIZES = {
    "q_lora_rank": 32,
    "kv_lora_rank": LATENT,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROTARY,
    "v_head_dim": VALUE,
}
# No near-ties between a batch of one and a batch of K + 1.
RANDOM_ENGINE = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 128,
    "gpu_memory_utilization": 0.2,
}
PROMPTS = [[3, 14, 15, 92, 65, 35, 89, 79], [27, 18, 28], [1]]
MAX_TOKENS = 24


def write_random_target(folder: Path, **overrides: Any) -> Path:
    """A Llama that fits the drafts, with weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    write_target(folder, **overrides)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(folder))
    for parameter in model.parameters():  # the default scale makes every logit a near-tie
        parameter.data.mul_(4.0 if parameter.ndim == 2 else 1.0)
    model.save_pretrained(folder)
    return folder


def write_latent_target(folder: Path) -> Path:
    """A DeepSeek-V3 of the same sizes: vLLM's CPU backend cannot mix latent and plain attention."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(0)
    config = DeepseekV3Config(
        hidden_size=HIDDEN,
        intermediate_size=INTER,
        moe_intermediate_size=INTER,
        num_hidden_layers=LAYERS,
        first_k_dense_replace=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        vocab_size=VOCAB,
        max_position_embeddings=512,
        dtype="bfloat16",
        **LATENT_SIZES,
    )
    model = DeepseekV3ForCausalLM(config)
    for parameter in model.parameters():
        parameter.data.mul_(4.0 if parameter.ndim == 2 else 1.0)
    model.save_pretrained(folder)
    return folder
