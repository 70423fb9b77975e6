"""The tiny hybrid target: Qwen3.5's layer mix, three gated delta nets to one full attention."""

from __future__ import annotations

import torch
from rich.progress import Progress
from transformers import PreTrainedTokenizerFast, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from .delta_rule import fast_delta_rule
from .target import train_language_model

MASK = "<|mask|>"
VOCAB_MULTIPLE = 64
TOKENS_PER_STEP = 2048


def add_mask_token(tokenizer: PreTrainedTokenizerFast) -> int:
    """Add DFlash's placeholder after the tokens that text can contain, and return its id."""
    tokenizer.add_special_tokens({"additional_special_tokens": [MASK]})
    return int(tokenizer.convert_tokens_to_ids(MASK))


def hybrid_config(vocab_size: int) -> Qwen3_5TextConfig:
    """Keys and proportions of the published text models; heads of 64 instead of 128 and 256."""
    return Qwen3_5TextConfig(
        architectures=["Qwen3_5ForCausalLM"],
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=448,
        num_hidden_layers=8,
        full_attention_interval=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            # Of the 8 rotated pairs of a head, as [11, 11, 10] of the published 32.
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
        attn_output_gate=True,
        mamba_ssm_dtype="float32",
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        dtype="bfloat16",
    )


def train_hybrid_target(
    stream: torch.Tensor,  # [tokens]
    *,
    vocab_size: int,
    steps: int,
    seed: int,
    progress: Progress,
) -> tuple[Qwen3_5ForCausalLM, float]:
    """As `train_target`, in steps of half the tokens: these layers cost more on a CPU and need fewer."""
    torch.manual_seed(seed)
    rounded = -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    model = Qwen3_5ForCausalLM(hybrid_config(rounded)).float().train()
    with fast_delta_rule():
        loss = train_language_model(
            model,
            stream,
            name="hybrid target",
            steps=steps,
            seed=seed,
            progress=progress,
            tokens_per_step=TOKENS_PER_STEP,
        )
    return model.bfloat16().eval(), loss
