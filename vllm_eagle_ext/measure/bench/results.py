# SPDX-License-Identifier: Apache-2.0
"""What a bench leaves in its folder: settings, and one line per engine and per measurement."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal, get_args

from vllm_eagle_ext.measure.folder import Record, RunFolder

ComparedKind = Literal["none", "stock", "ours"]  # no draft, stock vLLM, this package
VariantKind = Literal[ComparedKind, "config"]  # the last: this package, with the config of a file
KINDS: tuple[ComparedKind, ...] = get_args(ComparedKind)

SETTINGS, ENGINES, MEASUREMENTS = "bench.json", "engines.jsonl", "measurements.jsonl"


class Variant(Record):
    """What is served: by whom, with which draft and K."""

    kind: VariantKind
    draft: str | None = None  # None without a draft
    k: int = 0  # of a config the largest

    @property
    def has_plugin(self) -> bool:
        """Whether this package serves it."""
        return self.kind in ("ours", "config")

    @property
    def name(self) -> str:
        return self.kind if self.draft is None else f"{self.kind} {self.draft} K={self.k}"


class GivenConfig(Record):
    """A config as `vllm-eagle tune` prints it."""

    draft: str  # as the command names it
    speculative_config: dict[str, Any]
    additional_config: dict[str, Any]

    @property
    def variant(self) -> Variant:
        k = self.speculative_config["num_speculative_tokens"]
        return Variant(kind="config", draft=self.draft, k=k)


class Settings(Record):
    """What was asked for. Two runs of the same settings may be continued in one folder."""

    target: str
    drafts: list[str]
    method: dict[str, str]  # by draft: as in --speculative-config
    parallel_drafting: list[str] = []  # drafts that are served with it
    ks: list[int]
    concurrency: list[int]
    repeats: int  # engines of each kind
    rounds: int = 1  # measurements of an engine at each concurrency
    together: bool = False  # engines of a repeat run beside each other, in turns by rounds
    max_tokens: int
    temperature: float
    seed: int
    ignore_eos: bool
    prompts: str  # a file, a data set or "built-in"
    num_prompts: int
    prompts_sha256: str  # of the token ids
    prompt_tokens: list[int]  # of each prompt
    chat_template: bool
    thinking: bool | None  # None: the template's own default
    engine: dict[str, Any]  # further keywords of LLM()
    speculative: dict[str, Any]  # further keys of speculative_config
    eagle_ext: dict[str, Any]
    synthetic_acceptance: list[float] | None  # per position, for the largest K; or [acceptance length]
    dummy: bool
    kinds: list[ComparedKind]  # of variants
    config: GivenConfig | None = None  # one more variant

    @property
    def runs(self) -> int:
        """Measurements of one variant at one concurrency."""
        return self.repeats * self.rounds


class Traffic(Record):
    """Bytes of one worker, as its memory holds them."""

    target_weights: int  # read by every pass: without an embedding table of its own, experts apart
    target_experts: int  # all experts of all layers
    experts: int  # per layer; 0 without
    experts_per_token: int
    draft_weights: int  # read by one pass of the draft, its output head included
    draft_fusion: int  # read once per step: the layer that fuses the target's states
    target_kv_per_token: int
    draft_kv_per_token: int
    state_per_request: int  # one block of recurrent state, all layers
    state_blocks: int  # per request, that a step may write
    parallel_drafts: bool  # one pass of the draft for all K tokens
    copy_bytes_per_s: float  # read plus written, best of several copies on the worker's device


class Split(Record):
    """Mean seconds of one decoding step in a worker, the device drained before and after each part."""

    concurrency: int
    steps: int
    target_s: float  # the target's forward and the sampling of its rows
    draft_s: float


class EngineRecord(Record):
    """One engine. The split is taken apart from what is timed, in the first repeat alone."""

    variant: Variant
    repeat: int  # counts engines
    start_s: float
    gpu_memory_utilization: float | None = None  # as chosen here; None: the user's or vLLM's own
    error: str | None = None  # it did not start, or not reach its end
    probe_error: str | None = None  # of the parts below alone
    facts: dict[str, Any] = {}  # drafter class, state scheme, as the workers say
    traffic: Traffic | None = None
    splits: list[Split] = []


class ContextBin(Record):
    """Steps whose first token stands at a context of `start` to `end` tokens."""

    start: int
    end: int
    steps: int
    tokens: int  # emitted by them, the bonus included


class Measurement(Record):
    """One engine under one concurrency, in one round."""

    variant: Variant
    repeat: int  # counts the rounds of all engines of its kind
    concurrency: int
    seconds: float
    requests: int
    tokens: int
    decode_s: float  # from first token to last, sum over the requests
    decode_steps: int  # of the target after the prompt's, sum over the requests
    ttft_s: list[float]  # per request
    tpot_s: list[float]  # per request of two tokens or more
    drafts: int
    drafted: int
    accepted: list[int]  # per position
    by_context: list[ContextBin]
    texts_sha256: str  # of the token ids of all answers, in the order of the prompts
    other_cores: float | None = None  # that processes other than the bench's kept busy meanwhile

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


class Folder(RunFolder[Settings]):
    """The folder of a bench."""

    COMMAND = "bench"
    HEADER = SETTINGS
    LINES = (ENGINES, MEASUREMENTS)
    SETTINGS_RECORD = Settings

    def engines(self) -> list[EngineRecord]:
        return self.read(ENGINES, EngineRecord)

    def measurements(self) -> list[Measurement]:
        """Read all measurements; of what was measured twice, the later."""
        found = self.read(MEASUREMENTS, Measurement)
        return list({(m.variant, m.repeat, m.concurrency): m for m in found}.values())

    def add(self, record: EngineRecord | Measurement) -> None:
        self.write(ENGINES if isinstance(record, EngineRecord) else MEASUREMENTS, record)


def sha256_of(ids: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()
