"""Changes one thing of a draft, its target or the command; seeded."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.subjects import WEIGHTS, Subject
from tests.fuzz.worker import FORGED
from vllm_eagle_ext.options import Options

SPOOF = f"\x1b[2J\n{FORGED}: would be served"
SLOW = "(.|\\w|[a-z])*#"
TEXTS = (
    "", "x", "auto", "1", "bfloat16", "../../etc/passwd", "a" * 5000, SPOOF, "\ud800", "\u202etxt", "é",
    SLOW, f"re:{SLOW}", "re:" + "(" * 3000, "a{99999999999}", "layers." + "9" * 5000,
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 3, 7, 2**31 - 1, 2**63, 10**30, 0.5, -0.5, 1e308, float("nan"), float("inf"))
NESTED: tuple[Any, ...] = (
    [], {}, [None], [5], [[]], ["x"], {"5": 5}, {"": None}, [0, 1, 2], ["full_attention"], [SPOOF],
    {SPOOF: SPOOF}, {"rope_type": SPOOF}, {"factor": "x"}, [list(range(3000))],
    {f"norm_{i}": i for i in range(3000)}, json.loads("[" * 60 + "]" * 60),
)  # fmt: skip
VALUES = (None, True, False, *TEXTS, *NUMBERS, *NESTED)
NAMES = (f"norm_{SPOOF}", "scale_\ud800", "x" * 3000, "", "a.b", "quantization_config", "text_config")
FLAGS = ("--json", "--all", "--prefix-caching", "--no-prefix-caching", "--weights")
WITH_VALUES = ("-k", "--tp", "--max-model-len", "--method", "--platform", "--revision", "--speculative",
               "--eagle-ext", "--download-dir")  # fmt: skip
SPECULATIVE = ("model", "method", "num_speculative_tokens", "draft_tensor_parallel_size", "quantization",
               "max_model_len", "parallel_drafting", "rejection_sample_method", "x")  # fmt: skip
PLAN = ("--gpu-mem", "--tp", "--max-model-len", "--max-num-seqs", "--kv-cache-dtype", "--vllm",
        "--platform", "--gdn-prefill", "--weights-gib")  # fmt: skip
Path_ = tuple[Any, ...]


@dataclass
class Case:
    """A subject that may be changed."""

    subject: Subject
    config: Any
    target: Any
    options: dict[str, str]
    flags: list[str] = field(default_factory=list)
    header: dict[str, Any] | None = None  # None: the file as it is
    files: dict[str, bytes] = field(default_factory=dict)  # further ones, and those written over
    command: str = "check"

    def write(self, folder: Path) -> list[str]:
        """Write the files, and return the words of the command."""
        files = {
            "draft/config.json": json.dumps(self.config).encode(),
            "target/config.json": json.dumps(self.target).encode(),
        }
        if self.header is not None:
            header = json.dumps(self.header).encode()
            data = self.subject.weights()[1]
            files[f"draft/{WEIGHTS}"] = len(header).to_bytes(8, "little") + header + data
        for name, content in (files | self.files).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if not (weights := folder / "draft" / WEIGHTS).exists():
            weights.hardlink_to(self.subject.folder / "draft" / WEIGHTS)
        words = [word for pair in self.options.items() for word in pair]
        places = [str(folder / "draft"), "--target", str(folder / "target")]
        return [self.command, *places, *words, *self.flags]


@dataclass(frozen=True)
class Change:
    label: str
    apply: Callable[[Case], object]


def fresh(subject: Subject) -> Case:
    return Case(subject, subject.read("draft"), subject.read("target"), dict(subject.options))


def places(node: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Where a config holds something: keys, and the first entries of lists."""
    items = (
        node.items() if isinstance(node, dict) else enumerate(node[:3]) if isinstance(node, list) else ()
    )
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def at(node: Any, path: Path_) -> Any:
    for key in path:
        node = node[key]
    return node


def edit(of: str, path: Path_, value: Any, *, drop: bool = False) -> Change:
    """Set, or drop, what lies at a place of `config`, `target` or `header`."""

    def apply(case: Case) -> None:
        if of == "header" and case.header is None:
            case.header = case.subject.weights()[0]
        holder = at(getattr(case, of), path[:-1])
        if drop:
            del holder[path[-1]]
        else:
            holder[path[-1]] = copy.deepcopy(value)

    shown = "dropped" if drop else f"= {value!r:.80}"
    return Change(f"{of} {'.'.join(map(str, path))!r:.80} {shown}", apply)


def other_value(rng: random.Random, old: Any) -> Any:
    """Of another type, near the old one, or of the list."""
    near: list[Any] = [str(old), [old], {"a": old}, None, True]
    if isinstance(old, int | float):
        near += [float(old), int(old), bool(old), -old, old + 1, old * 2, old // 2, old * 1000]
    if isinstance(old, str):
        near += [old + SPOOF, old[1:], old.upper(), f"{old}é"]
    if isinstance(old, list):
        near += [old[:-1], old + old, old[::-1], [str(inner) for inner in old], {"0": old}]
    return rng.choice(near if rng.random() < 0.6 else VALUES)


def at_place(rng: random.Random, of: str, config: Any, path: Path_) -> Change:
    roll = rng.random()
    if roll < 0.08:
        return edit(of, path, None, drop=True)
    if roll < 0.14 and isinstance(path[-1], str):
        return edit(
            of, (*path[:-1], path[-1] + rng.choice(("s", SPOOF, "\ud800", "_"))), at(config, path)
        )
    if roll < 0.2:
        return edit(of, path, at(config, rng.choice(list(places(config)))))
    return edit(of, path, other_value(rng, at(config, path)))


class Generator:
    """Draws mutants: each second one takes the next key of the next family, the others anything."""

    def __init__(self, seed: int, pool: list[Subject]) -> None:
        self.seed, self.subjects = seed, pool
        self.tiny = [subject for subject in pool if subject.is_tiny]
        self.holders: dict[tuple[str, Path_], list[Subject]] = {}
        for subject in pool:
            for path in places(subject.read("draft")):
                if all(isinstance(key, str) for key in path):
                    self.holders.setdefault((subject.family, path), []).append(subject)
        self.keys = list(self.holders)
        random.Random(seed).shuffle(self.keys)
        self.names = sorted({path[-1] for _, path in self.keys})

    def draw(self, index: int) -> tuple[Subject, list[Change]]:
        rng = random.Random(f"{self.seed}/{index}")
        if index % 2 == 0:
            key = self.keys[index // 2 % len(self.keys)]
            subject = rng.choice(self.holders[key])
            return subject, [at_place(rng, "config", subject.read("draft"), key[1])]
        subject = rng.choice(self.tiny if rng.random() < 0.5 else self.subjects)
        kinds = [self._insert, self._target, self._options, self._plan, self._tokenizers]
        if subject.is_tiny:
            kinds += [self._header, self._header, self._bytes, self._insert]
        changes = [rng.choice(kinds)(rng, subject) for _ in range(rng.choice((1, 1, 2)))]
        return subject, changes

    def _insert(self, rng: random.Random, subject: Subject) -> Change:
        config = subject.read("draft")
        holders = [(), *(path for path in places(config) if isinstance(at(config, path), dict))]
        name = rng.choice(self.names if rng.random() < 0.8 else NAMES)
        value: Any = rng.choice(VALUES)
        if rng.random() < 0.3:  # as another draft has it
            (_, path), others = rng.choice(list(self.holders.items()))
            name, value = path[-1], at(others[0].read("draft"), path)
        return edit("config", (*rng.choice(holders), name), value)

    def _target(self, rng: random.Random, subject: Subject) -> Change:
        config = subject.read("target")
        return at_place(rng, "target", config, rng.choice(list(places(config))))

    def _header(self, rng: random.Random, subject: Subject) -> Change:
        header = subject.weights()[0]
        if rng.random() < 0.2:
            entry = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
            added = {"__metadata__": rng.choice(VALUES), rng.choice(NAMES): entry, TEXTS[-1]: entry}
            name = rng.choice(list(added))
            return edit("header", (name,), added[name])
        return at_place(rng, "header", header, rng.choice(list(places(header))))

    def _bytes(self, rng: random.Random, subject: Subject) -> Change:
        name = rng.choice((WEIGHTS, "config.json", "config.json", f"{WEIGHTS}.index.json"))
        raw = bytearray(b'{"weight_map": {"fc.weight": "model.safetensors"}}')
        if not name.endswith("index.json"):
            raw = bytearray((subject.folder / "draft" / name).read_bytes())
        where, to = rng.randrange(min(len(raw), 3000)), rng.randrange(256)
        if rng.random() < 0.3:
            del raw[where:]
        else:
            raw[where : where + rng.randrange(3)] = bytes([to])
        content = bytes(raw)
        label = f"bytes of {name} at {where}: {len(content)} left, {to}"
        return Change(label, lambda case: case.files.update({f"draft/{name}": content}))

    def _tokenizers(self, rng: random.Random, subject: Subject) -> Change:
        tokenizer: Any = {
            "model": {"vocab": {"a": 0, "b": 1}},
            "added_tokens": [{"id": 2, "content": "c"}],
        }
        raw = {"target/tokenizer.json": json.dumps(tokenizer).encode()}
        path = rng.choice(list(places(tokenizer)))
        at(tokenizer, path[:-1])[path[-1]] = rng.choice(VALUES)
        raw["draft/tokenizer.json"] = json.dumps(tokenizer).encode()
        return Change(f"tokenizer.json {path} changed", lambda case: case.files.update(raw))

    def _options(self, rng: random.Random, subject: Subject) -> Change:
        if rng.random() < 0.3:
            flag = rng.choice(FLAGS if subject.is_tiny else FLAGS[:-1])
            return Change(flag, lambda case: case.flags.append(flag))
        return self._option(rng, WITH_VALUES)

    def _option(self, rng: random.Random, names: tuple[str, ...]) -> Change:
        name, value = rng.choice(names), rng.choice((*NUMBERS, *TEXTS[:6], 4, 16))
        if name in ("--speculative", "--eagle-ext"):
            keys = SPECULATIVE if name == "--speculative" else tuple(Options.model_fields)
            value = json.dumps({rng.choice((*keys, SPOOF)): rng.choice(VALUES)})
        return Change(f"{name} {value!s:.80}", lambda case: case.options.update({name: str(value)}))

    def _plan(self, rng: random.Random, subject: Subject) -> Change:
        inner = self._target(rng, subject) if rng.random() < 0.6 else self._option(rng, PLAN)

        def apply(case: Case) -> None:
            case.command, case.flags = "plan", []
            given = {"--gpu-mem": "80", "--weights-gib": "50"}
            case.options = {"-k": case.options.get("-k", "3"), **given}
            inner.apply(case)

        return Change(f"plan, {inner.label}", apply)
