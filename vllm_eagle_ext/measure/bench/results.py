# SPDX-License-Identifier: Apache-2.0
"""What a bench leaves in its folder: settings, and one line per engine and per measurement."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from vllm_eagle_ext.errors import SpeculativeConfigError

VariantKind = Literal["none", "stock", "ours"]  # no draft, stock vLLM, this package
KINDS: tuple[VariantKind, ...] = get_args(VariantKind)

SETTINGS, ENGINES, MEASUREMENTS = "bench.json", "engines.jsonl", "measurements.jsonl"


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def named(name: str, former: str, **more: Any) -> Any:
    """A field that folders of earlier releases hold under its former name."""
    return Field(validation_alias=AliasChoices(name, former), **more)


class Variant(Record):
    """What is served: by whom, with which draft and K."""

    kind: VariantKind = named("kind", "way")
    draft: str | None = None  # None without a draft
    k: int = 0

    @property
    def name(self) -> str:
        return self.kind if self.draft is None else f"{self.kind} {self.draft} K={self.k}"


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
    kinds: list[VariantKind] = named("kinds", "ways")  # of variants

    @property
    def runs(self) -> int:
        """Measurements of one variant at one concurrency."""
        return self.repeats * self.rounds


class Context(Record):
    """What it ran on."""

    command: str
    started: str  # ISO 8601, UTC
    versions: dict[str, str]
    device: str
    environment: dict[str, str]  # VLLM_*, OMP_*, CUDA_VISIBLE_DEVICES
    cores: int | None = None
    load_average: float | None = None  # of one minute, before the first engine


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
    state_blocks: int = named("state_blocks", "state_pages")  # per request, that a step may write
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


_Record = TypeVar("_Record", bound=Record)


class Folder:
    """The folder of a bench."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, settings: Settings, context: Context) -> None:
        """Start in the folder, or go on where it holds the same settings.

        Raises:
            SpeculativeConfigError: it holds another bench.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / SETTINGS
        if file.exists():
            self._same(self.settings(), settings, Settings.model_fields)
            self._same(self.context(), context, ("versions", "device", "environment"))
            self._drop_cut_lines()
            return
        written = {"settings": settings.model_dump(), "context": context.model_dump()}
        whole = file.with_suffix(".part")
        whole.write_text(json.dumps(written, indent=1) + "\n")
        whole.replace(file)

    def settings(self) -> Settings:
        return self._valid(Settings, json.dumps(self._header().get("settings")), SETTINGS)

    def context(self) -> Context:
        return self._valid(Context, json.dumps(self._header().get("context")), SETTINGS)

    def engines(self) -> list[EngineRecord]:
        return self._read(ENGINES, EngineRecord)

    def measurements(self) -> list[Measurement]:
        """Read all measurements; of what was measured twice, the later."""
        found = self._read(MEASUREMENTS, Measurement)
        return list({(m.variant, m.repeat, m.concurrency): m for m in found}.values())

    def add(self, record: EngineRecord | Measurement) -> None:
        name = ENGINES if isinstance(record, EngineRecord) else MEASUREMENTS
        with (self.path / name).open("a") as file:
            file.write(record.model_dump_json() + "\n")

    def _header(self) -> dict[str, Any]:
        """What bench.json holds.

        Raises:
            SpeculativeConfigError: no bench is here.
        """
        file = self.path / SETTINGS
        try:
            found: dict[str, Any] = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise SpeculativeConfigError(
                field="the bench's folder", value=str(self.path), allowed=f"one with {SETTINGS}",
                remedy=f"name the --out of an earlier `vllm-eagle bench` ({error})",
            ) from None  # fmt: skip
        return found

    def _read(self, name: str, kind: type[_Record]) -> list[_Record]:
        """A last line that was cut off, by a bench that was killed, is left out."""
        file = self.path / name
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [self._valid(kind, line, name) for line in lines if line.endswith("\n")]

    def _valid(self, kind: type[_Record], text: str, name: str) -> _Record:
        """The record that a line holds.

        Raises:
            SpeculativeConfigError: it is of another release, or damaged.
        """
        try:
            return kind.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            raise SpeculativeConfigError(
                field=f"{self.path / name}: {'.'.join(map(str, first['loc']))}", value=first["type"],
                allowed=f"what this release writes ({first['msg']})",
                remedy="measure again into another folder",
            ) from None  # fmt: skip

    def _drop_cut_lines(self) -> None:
        for name in (ENGINES, MEASUREMENTS):
            file = self.path / name
            if file.exists() and not (text := file.read_text()).endswith("\n"):
                file.write_text(text[: text.rfind("\n") + 1])

    def _same(self, found: Record, wanted: Record, names: Iterable[str]) -> None:
        for name in names:
            here, there = getattr(wanted, name), getattr(found, name)
            if here != there:
                raise SpeculativeConfigError(
                    field=f"--out {self.path}: {name}", value=here, allowed=f"{there}, as it began",
                    remedy="name another folder, or go on with what it began with",
                )  # fmt: skip


def sha256_of(ids: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()
