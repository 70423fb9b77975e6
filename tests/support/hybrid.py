"""Engines on a hybrid target, several to a process: an engine of this size starts in seconds there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.batches import RECORDED, Batch, Engine, Oracle, difference, start_engines
from tests.support.engine import TINY, EngineFailedError
from vllm_eagle_ext.measure.engine.load import accepted_of

FIRST, SECOND, STATES = "first turn", "second turn", "states"
TARGET = TINY / "hybrid_target"


DFLASH_AUX_LAYERS = (1, 3, 5, 7)  # of 8 layers: the config's outputs of layers 0, 2, 4, 6


def dflash(k: int) -> dict[str, Any]:
    return {"method": "dflash", "model": str(TINY / "dflash"), "num_speculative_tokens": k}


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
    vocab: int = Oracle.vocab
    kernels: str | None = None  # Triton's of this name, in place of vLLM's C++ kernel
    broken: str | None = None  # from the first request on
    broken_at_start: str | None = None  # before the engine is built, which checks itself
    then: list[int] | None = None  # a second turn: prompt, own text, these tokens
    concurrency: int | None = None  # requests at a time
    repeats: int = 1  # each is timed; texts are those of the last one
    abort_after: dict[str, int] = field(default_factory=dict)  # request's number -> steps
    temperature: float = 0.0
    sampling_seed: int | None = None
    logprobs: int | None = None
    record: bool = False  # every draft, in the order of the prompts
    state_prompt: list[int] | None = None  # before all else: the states that the draft is handed for it
    options: dict[str, Any] = field(default_factory=dict)  # additional_config.eagle_ext
    engine_args: dict[str, Any] = field(default_factory=dict)
    target: Path = TARGET


def engine_of(run: HybridRun) -> Engine:
    count = len(run.prompts)
    sampling = {"temperature": run.temperature, "seed": run.sampling_seed}
    common: dict[str, Any] = {
        "max_tokens": run.max_tokens,
        "concurrency": run.concurrency,
        "logprobs": run.logprobs,
        "asked": [sampling] * count,
    }
    oracle = Oracle(run.follow, run.right, run.vocab) if run.follow is not None else None
    batches = [
        Batch(f"{FIRST} {i}", run.prompts, oracle=oracle, aborts=run.abort_after, **common)
        for i in range(run.repeats)
    ]
    if run.state_prompt:
        batches.insert(0, Batch(STATES, [run.state_prompt], max_tokens=1, states=True))
    if run.then:
        last = batches[-1].name
        batches.append(Batch(SECOND, follows=last, then=run.then, **common))
    options = run.options | ({} if run.state is None else {"hybrid_state": run.state})
    return Engine(
        run.name, batches, run.speculative, run.engine_args, options, run.target,
        RECORDED if run.record else None, run.kernels, run.broken, run.broken_at_start,
    )  # fmt: skip


def result_of(batches: dict[str, Any]) -> dict[str, Any]:
    """What was found of a run's batches, as one result."""
    if "error" in batches:
        return batches
    first = [result for name, result in batches.items() if name.startswith(FIRST)]
    if "tokens" not in first[-1]:  # requests were aborted
        return first[-1]
    last = batches.get(SECOND, first[-1])
    second = batches.get(SECOND, dict.fromkeys(("tokens", "cached", "logprobs"), []))
    texts = zip(last["prompts"], last["tokens"], strict=True)
    before = batches[STATES]["all_counters"] if STATES in batches else {}
    return {
        **first[-1],
        **{f"second_{part}": second[part] for part in ("cached", "logprobs")},
        "second_turn": second["tokens"],
        "texts": [prompt + own for prompt, own in texts],
        "first_counters": first[-1]["all_counters"],
        "counters": {n: difference(count, before.get(n)) for n, count in last["all_counters"].items()},
        "seconds": [result["seconds"] for result in first],
        "steps": last["oracle_steps"],
        "state_blocks": last["state_blocks"],
        "states": batches[STATES]["states"] if STATES in batches else None,
    }


def run_all(
    runs: Sequence[HybridRun], runner: str = "v1", **environment: str
) -> tuple[dict[str, Any], str]:
    """Results by name, and what the process printed.

    Raises:
        EngineFailedError: the process ended without results.
    """
    served, log = start_engines([engine_of(run) for run in runs], runner, **environment)
    return {name: result_of(batches) for name, batches in served.items()}, log


def with_log(
    runs: Sequence[HybridRun], runner: str = "v1", **environment: str
) -> tuple[dict[str, Any], str]:
    """As `run_all`, of engines that must not fail.

    Raises:
        EngineFailedError: an engine failed, or their process.
    """
    results, log = run_all(runs, runner, **environment)
    for name, result in results.items():
        if "error" in result:
            raise EngineFailedError(f"{log[-3000:]}\n{name}: {result['trace']}")
    return results, log


def started(runs: Sequence[HybridRun], runner: str = "v1", **environment: str) -> dict[str, Any]:
    return with_log(runs, runner, **environment)[0]


def per_position(result: dict[str, Any]) -> list[int]:
    return result["counters"]["spec_decode_num_accepted_tokens_per_pos"]


def assert_requests_add_up(result: dict[str, Any]) -> None:
    """vLLM's statistics of single requests are its counters, taken apart."""
    steps = [row["steps"] for row in result["histograms"]]
    assert len(steps) == len(result["tokens"])
    counted = result["counters"]
    assert sum(map(sum, steps)) == counted["spec_decode_num_drafts"] > len(steps)
    assert accepted_of(steps) == per_position(result)
    assert sum(row["drafted"] for row in result["histograms"]) == counted["spec_decode_num_draft_tokens"]


def acceptance(result: dict[str, Any]) -> list[float]:
    drafts = result["counters"]["spec_decode_num_drafts"]
    return [count / drafts for count in per_position(result)]
