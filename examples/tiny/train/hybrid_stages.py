"""The stages of the hybrid pair: a Qwen3.5 target, its own text, a DFlash draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3_5ForCausalLM

from .corpus import encode_stream, sample_windows
from .delta_rule import fast_delta_rule
from .dflash import DFlashShape
from .dflash_training import dflash_acceptance, train_dflash
from .export import save_dflash
from .hybrid_target import MASK, add_mask_token, train_hybrid_target
from .run import NEW_TOKENS, PROMPT_LENGTH, Run, write_own_text
from .target import held_out_loss, save_target

TARGET = "hybrid_target"


def run_hybrid_target(run: Run) -> dict[str, Any]:
    """Takes over the first target's tokenizer with its ids."""
    tokenizer = AutoTokenizer.from_pretrained(run.out / "target")
    mask_token_id = add_mask_token(tokenizer)
    tokenizer.save_pretrained(run.out / TARGET)
    model, loss = train_hybrid_target(
        encode_stream(tokenizer, list(run.corpus.train.values())),
        vocab_size=mask_token_id + 1,
        steps=run.hybrid_steps,
        seed=run.seed,
        progress=run.progress,
    )
    save_target(model, run.out / TARGET)
    held_out = encode_stream(tokenizer, list(run.corpus.held_out.values()))
    return {"loss": loss, "held_out_loss": held_out_loss(model, held_out)}


def run_hybrid_text(run: Run) -> dict[str, Any]:
    """Half as many texts as the other target writes: this one takes longer over them on a CPU."""
    tokenizer, model = load_hybrid_target(run.out)
    path = run.out / "hybrid_text.safetensors"
    with fast_delta_rule():
        return write_own_text(run, tokenizer, model, path, train_rows=-(-run.own_rows // 2))


def run_dflash(run: Run) -> dict[str, Any]:
    tokenizer, target = load_hybrid_target(run.out)
    text = load_file(run.out / "hybrid_text.safetensors")
    stream = encode_stream(tokenizer, list(run.corpus.train.values()))
    generator = torch.Generator().manual_seed(run.seed)
    rows = -(-len(text["train"]) // 4)
    corpus = sample_windows(stream, rows, PROMPT_LENGTH + NEW_TOKENS, generator)
    with fast_delta_rule():
        draft, loss = train_dflash(
            target,
            dflash_shape(target, tokenizer.convert_tokens_to_ids(MASK)),
            text["train"],
            corpus,
            prompt_length=PROMPT_LENGTH,
            steps=run.dflash_steps,
            seed=run.seed,
            progress=run.progress,
        )
        acceptance = dflash_acceptance(
            draft, target, text["held_out"], prompt_length=PROMPT_LENGTH, progress=run.progress
        )
    length = target.config.max_position_embeddings
    save_dflash(draft, run.out / "dflash", max_position_embeddings=length)
    return {"loss": loss, "acceptance": acceptance, "acceptance_length": 1 + sum(acceptance)}


def dflash_shape(target: Qwen3_5ForCausalLM, mask_token_id: int) -> DFlashShape:
    """Attention of the target's geometry and as many layers as the target has of full attention:
    vLLM's first runner keeps a draft's keys and values in one cache group."""
    config = target.config
    return DFlashShape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=512,
        num_layers=config.layer_types.count("full_attention"),
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        target_layers=config.num_hidden_layers,
        # The last layer's output is left out: transformers reports it final-normed.
        output_ids=tuple(range(0, config.num_hidden_layers - 1, 2)),
        mask_token_id=mask_token_id,
        block_size=8,
        rms_norm_eps=config.rms_norm_eps,
    )


def load_hybrid_target(out: Path) -> tuple[PreTrainedTokenizerFast, Qwen3_5ForCausalLM]:
    model = Qwen3_5ForCausalLM.from_pretrained(out / TARGET, dtype=torch.bfloat16)
    return AutoTokenizer.from_pretrained(out / TARGET), model.eval()
