"""A virtual clock: vLLM's real scheduler and KV-cache manager serve Qwen3.6-27B to a closed loop of
clients, and a model of a step's time stands in for the GPU.

What is vLLM's: specs of the target's layers, cache groups, blocks, scheduling, preemption. What is
made up: the tokens, how many drafts are accepted (by lot, from a seed), and time. So every figure is
the same in every run.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, quantiles
from typing import Any, Literal

import torch
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from tests.support.stepping import Stepper
from tests.unit.memory.built_model import Builder, Case
from vllm_eagle_ext.memory.footprint import GPU_BATCH
from vllm_eagle_ext.memory.geometry import Attention
from vllm_eagle_ext.replay.built_caches import Specs, built_specs, planning

MOST_REQUESTS = 256  # at a time
_IDS = range(1000, 100_000)  # of prompts


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a GPU serves, and the bytes that its KV cache has."""

    scheme: Literal["none", "per_token", "replay"]  # none: without a draft
    k: int
    draft: tuple[Attention, ...]  # its layers
    budget: int
    length: int  # max_model_len
    prefix_caching: bool = True


@dataclass(frozen=True, kw_only=True)
class Clients:
    """A closed loop: who has an answer asks again at once, with a new prompt."""

    number: int
    prompt: int  # tokens
    answer: int
    rates: Sequence[float]  # chance that at least so many drafts are accepted, per position


@dataclass(frozen=True)
class Load:
    """What one step computes."""

    requests: int  # that decode, each 1 + K rows
    context: float  # their mean length
    prompt_rows: int


@dataclass(frozen=True)
class Figures:
    """Of the last three quarters of the steps; times are seconds of the clock."""

    tokens_per_s: float
    first_token_mean: float | None  # None: no request got one
    first_token_median: float | None
    first_token_p90: float | None
    answers: int
    preemptions: int
    most_running: int
    digest: str  # of every step's end and schedule


@dataclass
class Engine:
    """A config and the caches that vLLM planned for it. Each scheduler of it starts empty."""

    config: Any
    cache: Any  # KVCacheConfig
    groups: list[tuple[str, int]] = field(init=False)  # kind and layers
    hasher: Any = None

    def __post_init__(self) -> None:
        self.groups = [
            (type(group.kv_cache_spec).__name__, len(group.layer_names))
            for group in self.cache.kv_cache_groups
        ]

    def scheduler(self) -> Any:
        block, hashed = kv_cache_utils.resolve_kv_cache_block_sizes(self.cache, self.config)
        if self.config.cache_config.enable_prefix_caching:
            kv_cache_utils.init_none_hash(sha256)
            self.hasher = kv_cache_utils.get_request_block_hasher(hashed, sha256)
        return self.config.scheduler_config.get_scheduler_cls()(
            vllm_config=self.config,
            kv_cache_config=self.cache,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=block,
            hash_block_size=hashed,
            log_stats=True,
        )


def plan_engine(build: Builder, served: Served) -> Engine:
    """Plan the caches as an engine core does, for the layers of the target and the draft."""
    case = Case(
        k=max(served.k, 1), length=served.length, prefix_caching=served.prefix_caching,
        prefill="flashinfer",
    )  # fmt: skip
    config = build("replay" if served.scheme == "replay" else "per_token", case)
    specs = built_specs(config) | draft_specs(config, served.draft)
    if served.k:
        config.speculative_config.method = "dflash"  # which rows a step reserves follows from it
    else:
        config.speculative_config = None
        specs = {
            name: replace(spec, num_speculative_blocks=0) if isinstance(spec, MambaSpec) else spec
            for name, spec in specs.items()
        }
    scheduling = config.scheduler_config
    scheduling.max_num_batched_tokens = scheduling.max_num_scheduled_tokens = GPU_BATCH
    scheduling.max_num_seqs, scheduling.async_scheduling = MOST_REQUESTS, True
    config.cache_config.enable_prefix_caching = served.prefix_caching
    groups = planning.get_kv_cache_groups(config, specs)
    planned = planning.get_kv_cache_config_from_groups(config, groups, served.budget)
    cache = kv_cache_utils.generate_scheduler_kv_cache_config([planned])
    config.cache_config.num_gpu_blocks = cache.num_blocks
    return Engine(config, cache)


def draft_specs(config: Any, layers: Sequence[Attention]) -> Specs:
    """Make what the layers of a draft hand to vLLM: blocks have as many tokens as the target's."""
    specs: Specs = {}
    for kind in layers:
        shape = {
            "block_size": config.cache_config.block_size, "dtype": torch.bfloat16,
            "num_kv_heads": kind.kv_heads, "head_size": kind.head_dim,
        }  # fmt: skip
        spec = (
            FullAttentionSpec(**shape)
            if kind.window is None
            else SlidingWindowSpec(**shape, sliding_window=kind.window)
        )
        specs |= {f"draft.{len(specs) + n}": spec for n in range(kind.layers)}
    return specs


class Loop(Stepper):
    """Steps an engine under its clients."""

    def __init__(
        self, engine: Engine, clients: Clients, seconds: Callable[[Load], float], seed: int = 0
    ) -> None:
        super().__init__(engine.scheduler(), lambda *_: 0.0, self._accepted)
        self.hasher, self.clients, self.step_seconds = engine.hasher, clients, seconds
        self.draw = random.Random(seed)
        self.rows = 1 + engine.config.num_speculative_tokens
        self.digest = hashlib.sha256()
        self.asked: dict[str, float] = {}
        self.waits: dict[str, float] = {}  # for the first token
        self.tokens = self.answers = self.preemptions = self.most_running = 0
        for _ in range(clients.number):
            self._ask()

    def figures(self, steps: int) -> Figures:
        self.run(steps // 4)
        began, self.tokens, self.answers, self.preemptions = self.now, 0, 0, 0
        early = set(self.waits)
        self.run(steps - steps // 4)
        waits = [wait for name, wait in self.waits.items() if name not in early]
        tenths: list[Any] = quantiles(waits, n=10) if len(waits) > 1 else [None] * 9
        return Figures(
            tokens_per_s=self.tokens / (self.now - began),
            first_token_mean=mean(waits) if waits else None,
            first_token_median=tenths[4],
            first_token_p90=tenths[8],
            answers=self.answers,
            preemptions=self.preemptions,
            most_running=self.most_running,
            digest=self.digest.hexdigest(),
        )

    def _ask(self) -> None:
        name = str(len(self.asked))
        self.asked[name] = self.now
        ids = self.draw.choices(_IDS, k=self.clients.prompt)
        params = SamplingParams(temperature=0.0, max_tokens=self.clients.answer, ignore_eos=True)
        self.scheduler.add_request(Request(name, ids, params, None, block_hasher=self.hasher))

    def _accepted(self, drafts: int) -> int:
        lot = self.draw.random()
        return sum(lot < rate for rate in self.clients.rates[:drafts])

    def _load(self, step: Any, in_prompt: set[str]) -> Load:
        """A request that was preempted computes its prompt and its answer so far again."""
        rows = step.num_scheduled_tokens
        decoding = [
            name for name in rows
            if name in self.waits and name not in in_prompt and rows[name] <= self.rows
        ]  # fmt: skip
        requests = self.scheduler.requests
        lengths = [requests[name].num_computed_tokens for name in decoding if name in requests]
        prompt_rows = sum(rows.values()) - sum(rows[name] for name in decoding)
        return Load(len(decoding), mean(lengths) if lengths else 0.0, prompt_rows)

    def _finish(self, step: Any, in_prompt: set[str]) -> None:
        self.steps.clear()
        self.now += self.step_seconds(self._load(step, in_prompt))
        self.preemptions += len(step.preempted_req_ids or ())
        self.most_running = max(self.most_running, len(self.scheduler.running))
        super()._finish(step, in_prompt)
        for outputs in self.outputs.pop().values():
            for out in outputs.outputs:
                self.tokens += len(out.new_token_ids)
                if out.new_token_ids and out.request_id not in self.waits:
                    self.waits[out.request_id] = self.now - self.asked[out.request_id]
                if out.finish_reason is not None:
                    self.answers += 1
                    self._ask()
        self.digest.update(repr((self.now, sorted(step.num_scheduled_tokens.items()))).encode())
