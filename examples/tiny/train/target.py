"""The tiny target: a Llama of 12 layers, trained in fp32 under bf16 autocast, saved in bf16."""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import Progress
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from .corpus import sample_windows
from .optim import build_optimizers, set_learning_rate, update

TOKENS_PER_STEP = 4096
# Short windows train fastest on a CPU; the last part sees long ones, so that prompts of about 1,000
# tokens are in range.
SHORT_WINDOW, LONG_WINDOW, LONG_WINDOW_SHARE = 256, 1024, 0.12
MAX_SHARD_SIZE = "6MB"


def target_config(vocab_size: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=384,
        num_hidden_layers=12,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        dtype="bfloat16",
    )


def train_target(
    stream: torch.Tensor,  # [tokens]
    *,
    vocab_size: int,
    steps: int,
    seed: int,
    progress: Progress,
) -> tuple[LlamaForCausalLM, float]:
    """Next-token training. Returns the model in bf16 and the mean loss of the last 100 steps."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(target_config(vocab_size)).float().train()
    loss = train_language_model(model, stream, name="target", steps=steps, seed=seed, progress=progress)
    return model.bfloat16().eval(), loss


def train_language_model(
    model: PreTrainedModel,  # fp32
    stream: torch.Tensor,  # [tokens]
    *,
    name: str,
    steps: int,
    seed: int,
    progress: Progress,
    tokens_per_step: int = TOKENS_PER_STEP,
) -> float:
    """Trains the model in place; returns the mean loss of the last 100 steps."""
    generator = torch.Generator().manual_seed(seed)
    optimizers = build_optimizers(model)
    task = progress.add_task(name, total=steps)
    losses: list[float] = []
    for step in range(steps):
        length = LONG_WINDOW if step >= steps * (1 - LONG_WINDOW_SHARE) else SHORT_WINDOW
        windows = sample_windows(stream, tokens_per_step // length, length + 1, generator)
        set_learning_rate(optimizers, step, steps)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(windows[:, :-1], use_cache=False).logits  # [B, length, V]
        loss = F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
        update(model, loss, optimizers)
        losses.append(loss.item())
        mean = sum(losses[-100:]) / len(losses[-100:])
        progress.update(task, advance=1, description=f"{name} loss {mean:.3f}")
    return mean


@torch.inference_mode()
def held_out_loss(model: PreTrainedModel, stream: torch.Tensor, length: int = 512) -> float:
    """Mean next-token loss over at most 64 consecutive windows of the held-out stream, in nats."""
    count = min(64, stream.numel() // (length + 1))
    windows = stream[: count * (length + 1)].view(count, length + 1)
    total = 0.0
    for batch in windows.split(8):
        logits = model(batch[:, :-1], use_cache=False).logits.float()
        total += F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum").item()
    return total / (count * length)


@torch.inference_mode()
def generate_greedy(
    model: PreTrainedModel,
    prompts: torch.Tensor,  # [N, P]
    *,
    new_tokens: int,
    batch_size: int,
    progress: Progress,
) -> torch.Tensor:
    """The target's own greedy continuations, prompt included. Returns [N, P + new_tokens]."""
    batches = math.ceil(prompts.shape[0] / batch_size)
    task = progress.add_task("target writes its own text", total=batches)
    rows = []
    for batch in prompts.split(batch_size):
        rows.append(
            model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                do_sample=False,
                min_new_tokens=new_tokens,
                max_new_tokens=new_tokens,
            )
        )
        progress.update(task, advance=1)
    return torch.cat(rows)


def save_target(model: PreTrainedModel, directory: Path) -> None:
    model.save_pretrained(directory, max_shard_size=MAX_SHARD_SIZE)
