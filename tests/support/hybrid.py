"""Engines on a hybrid target, several to a process: an engine of this size starts in seconds there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.engine import IN_PROCESS, TINY, engine_environment, run_child

TIMEOUT_S = 1500
TARGET = TINY / "hybrid_target"


def ngram(k: int) -> dict[str, Any]:
    """A method without a draft model, whose drafts a test replaces."""
    return {
        "method": "ngram",
        "num_speculative_tokens": k,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 4,
    }


def dflash_of_one_layer(folder: Path, k: int) -> dict[str, Any]:
    """The first layer of the DFlash draft, with a window wider than any text here. vLLM makes KV-cache
    groups as large as the smallest kind of layers: each gated delta net becomes a group."""
    config = json.loads((TINY / "dflash/config.json").read_text())
    config |= {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}
    config |= {"sliding_window": 1024, "use_sliding_window": True}
    tensors = load_file(TINY / "dflash/model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "layers.1." not in name}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(kept, folder / "model.safetensors")
    return {"method": "dflash", "model": str(folder), "num_speculative_tokens": k}


def eagle3_made_to_fit(folder: Path, k: int) -> dict[str, Any]:
    """The post-norm draft, of five layers' states: it was trained on another target, and is hardly ever
    right."""
    tensors = load_file(TINY / "postnorm/model.safetensors")
    config = json.loads((TINY / "postnorm/config.json").read_text())
    config["vocab_size"] = 1600
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 2, 3, 4, 6]
    tensors["t2d"] = torch.nn.functional.pad(tensors["t2d"], (0, 64))
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return {"method": "eagle3", "model": str(folder), "num_speculative_tokens": k}


@dataclass(frozen=True)
class HybridRun:
    name: str
    prompts: list[list[int]]
    max_tokens: int | list[int] = 64
    speculative: dict[str, Any] | None = None
    state: str | None = None  # hybrid_state
    follow: str | list[list[int]] | None = None  # texts, or an earlier run whose the drafts follow
    right: str = "random"
    kernels: str | None = None  # Triton's of this name, in place of vLLM's C++ kernel
    broken: str | None = None  # from the first request on
    broken_at_start: str | None = None  # before the engine is built, which checks itself
    then: list[int] | None = None  # a second turn: prompt, own text, these tokens
    forget: bool = False  # before it, what the device's prefix cache holds
    concurrency: int | None = None  # requests at a time
    repeats: int = 1  # each is timed; texts are those of the last one
    abort_after: dict[str, int] = field(default_factory=dict)  # request's number -> steps
    temperature: float = 0.0
    sampling_seed: int | None = None
    logprobs: int | None = None
    record: bool = False  # every draft, in the order of the prompts
    engine_args: dict[str, Any] = field(default_factory=dict)
    target: Path = TARGET


def run_all(
    runs: Sequence[HybridRun], runner: str = "v1", **environment: str
) -> tuple[dict[str, Any], str]:
    """Results by name, and what the process printed.

    Raises:
        EngineFailedError: the process ended without results.
    """
    return run_child(
        "hybrid_process",
        [asdict(run) for run in runs],
        environment=engine_environment(runner) | IN_PROCESS | environment,
        timeout_s=TIMEOUT_S,
    )
