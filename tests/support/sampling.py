"""Sampled texts against the target's own distribution, on continuations few enough to be listed.

The target has VOCAB tokens, so that LENGTH of them make VOCAB**LENGTH continuations; Hugging Face's
model in float32 gives the probability of each.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.batches import Engine, run_engines
from tests.support.drafts import Draft, valid_draft, write
from tests.support.random_targets import RANDOM_ENGINE, write_random_target

# The first token comes from the prompt's step, so that the others hold both drafts and the token after.
VOCAB, LENGTH, K = 5, 4, 2
PROMPT = (3, 4, 1)
EXPECTED = 5  # least expected count of a cell
KEPT = (0, 1, 2, 4)  # of an EAGLE-3 draft's vocabulary: token 3 is never drafted
AT_A_TIME = 500  # texts

Continuation = tuple[int, ...]


@dataclass(frozen=True)
class Draw:
    name: str
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    broken: str | None = None  # a fault of `sampling_draws.BROKEN`


@dataclass(frozen=True)
class SampledEngine:
    name: str
    draft: str | None  # a family of drafts.py
    how: str = "greedy"  # or "probabilistic": draft_sample_method
    draws: Sequence[Draw] = field(default_factory=lambda: [Draw("T=1")])
    schedule: Sequence[Sequence[int]] | None = None  # of K by the number of requests, vLLM's


@dataclass(frozen=True)
class Fit:
    """Goodness of fit of one sample."""

    chi_square: float
    freedom: int  # cells less one

    @property
    def p(self) -> float:
        half = torch.tensor([self.freedom / 2, self.chi_square / 2], dtype=torch.float64)
        return torch.special.gammaincc(half[0], half[1]).item()


def small_draft(family: str) -> Draft:
    """One of drafts.py, cut to the small vocabulary."""
    draft = valid_draft(family)
    draft.config["vocab_size"] = VOCAB
    if draft.method == "dflash":
        draft.config["dflash_config"]["mask_token_id"] = VOCAB - 1
        return draft
    kept = torch.tensor(KEPT)
    draft.config["draft_vocab_size"] = len(kept)
    draft.tensors["lm_head.weight"] = draft.tensors["lm_head.weight"][: len(kept)].clone()
    draft.tensors["d2t"] = kept - torch.arange(len(kept))
    draft.tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).scatter(0, kept, True)
    return draft


def write_small_draft(folder: Path, family: str) -> Path:
    return write(small_draft(family), folder / family)


def distribution(target: Path, draw: Draw) -> dict[Continuation, float]:
    """Compute each continuation's probability: the target's logits under the draw's settings."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    listed = list(itertools.product(range(VOCAB), repeat=LENGTH))
    rows = torch.tensor([PROMPT + ids for ids in listed])
    with torch.no_grad():
        logits = model(rows).logits[:, len(PROMPT) - 1 : -1].double()  # [N, LENGTH, VOCAB]
    chances = restricted((logits / draw.temperature).softmax(-1), draw.top_k, draw.top_p)
    each = chances.gather(2, torch.tensor(listed)[..., None]).squeeze(2).prod(1)
    return dict(zip(listed, each.tolist(), strict=True))


def restricted(chances: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """The top_k likeliest tokens, of these the fewest that hold top_p, renormalised."""
    ordered, order = chances.sort(-1, descending=True)
    if top_k:
        ordered[..., top_k:] = 0
    ordered /= ordered.sum(-1, keepdim=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.where(before < top_p, 0)
    ordered /= ordered.sum(-1, keepdim=True)
    return torch.zeros_like(chances).scatter(-1, order, ordered)


def fit(sample: Sequence[Continuation], chances: dict[Continuation, float]) -> Fit:
    """Neighbours, which share a prefix, are pooled until EXPECTED are expected of them."""
    counts = dict.fromkeys(chances, 0)
    for ids in sample:
        counts[tuple(ids)] += 1
    cells: list[list[float]] = [[0.0, 0.0]]
    for ids, chance in chances.items():
        if cells[-1][1] >= EXPECTED:
            cells.append([0.0, 0.0])
        cells[-1][0] += counts[ids]
        cells[-1][1] += chance * len(sample)
    if cells[-1][1] < EXPECTED:
        last = cells.pop()
        cells[-1] = [a + b for a, b in zip(cells[-1], last, strict=True)]
    chi_square = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    return Fit(chi_square, len(cells) - 1)


def write_small_target(folder: Path) -> Path:
    """Neither flat nor certain of a token."""
    write_random_target(folder, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] *= 2
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def draw_all(
    folder: Path, engines: Sequence[SampledEngine], seeds: int, size: int, runner: str = "v1"
) -> dict[str, dict]:
    """By engine: "drafts", "drafted" tokens, "accepted" per position, and "samples": by draw, per seed,
    `size` texts.

    Raises:
        EngineFailedError: an engine failed, or their process.
    """
    target = write_small_target(folder / "target")
    wanted = [
        Engine(
            engine.name,
            [],
            speculative_config(folder, engine) if engine.draft else None,
            RANDOM_ENGINE | {"max_model_len": 64, "max_num_seqs": AT_A_TIME},
            target=target,
            use="tests.support.sampling_draws",
            job={"draws": [asdict(draw) for draw in engine.draws], "seeds": seeds, "size": size},
        )
        for engine in engines
    ]
    return run_engines(wanted, runner)


def speculative_config(folder: Path, engine: SampledEngine) -> dict[str, Any]:
    assert engine.draft is not None
    config = {
        "method": "dflash" if engine.draft.startswith("dflash") else "eagle3",
        "model": str(write_small_draft(folder, engine.draft)),
        "num_speculative_tokens": K,
        "draft_sample_method": engine.how,
    }
    if engine.schedule:
        config["num_speculative_tokens_per_batch_size"] = engine.schedule
    return config
