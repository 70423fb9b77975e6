"""The texts that drafts are compared on: the target's own greedy continuations of committed prompts."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedModel

from tests.support.engine import TINY
from vllm_eagle_ext.measure.reference.published import load_target, residual_stream

PROMPT, ANSWER = 24, 32  # tokens
# As configs name it: a draft's file names its target, and must not hold a path of one machine.
TARGET, HYBRID = "examples/tiny/target", "examples/tiny/hybrid_target"


@functools.cache
def target(name: str = TARGET) -> PreTrainedModel:
    return load_target(TINY / Path(name).name)


@functools.cache
def prompts(name: str = TARGET, count: int = 2) -> tuple[tuple[int, ...], ...]:
    tokenizer = AutoTokenizer.from_pretrained(TINY / Path(name).name)
    lines = (TINY / "prompts.jsonl").read_text().splitlines()[:count]
    return tuple(tuple(tokenizer(json.loads(line)["text"])["input_ids"][:PROMPT]) for line in lines)


@functools.cache
def texts(name: str = TARGET) -> tuple[tuple[int, ...], ...]:
    """Each prompt and its continuation."""
    return tuple(tuple(_continued(target(name), prompt)) for prompt in prompts(name))


@torch.inference_mode()
def _continued(model: PreTrainedModel, prompt: tuple[int, ...]) -> list[int]:
    ids = torch.tensor([prompt])
    settings = {"max_new_tokens": ANSWER, "min_new_tokens": ANSWER, "do_sample": False}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0].tolist()


@torch.inference_mode()
def states(tokens: tuple[int, ...], layers: list[int], name: str = TARGET) -> torch.Tensor:
    """[1, T, n * Ht]: the residual stream entering each of the layers, in that order."""
    return torch.cat(residual_stream(target(name), tokens, layers), dim=-1)[None].clone()
