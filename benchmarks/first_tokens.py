# SPDX-License-Identifier: Apache-2.0
"""Whether the first tokens of a text help a draft that attends to its last ones.

    python -m benchmarks.first_tokens --target DIR --draft DIR [--windows 64,128] [--contexts 1000]

No engine: the target's own greedy texts and the plain PyTorch references, in float32. A draft is made
behind every token of a continuation, with each window beside the first 0, 4 and 16 tokens of the text,
which keep their positions in it. `--page` writes the table of docs/long_contexts.md from results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.confidence_page import filled
from benchmarks.draft_window import FULL, RESULTS
from benchmarks.long_prompts import TINY
from benchmarks.machine import machine
from benchmarks.performance_page import table
from examples.tiny.train.corpus import encode_stream, read_corpus
from vllm_eagle_ext.checkpoint import (
    Setting,
    TargetFacts,
    inspect_draft,
    read_config,
    read_draft_files,
)
from vllm_eagle_ext.measure.reference.eagle3 import Eagle3Reference
from vllm_eagle_ext.measure.reference.published import load_reference
from vllm_eagle_ext.measure.reference.target_states import load_target, residual_stream
from vllm_eagle_ext.measure.reference.walk import DFlashWalk, accepted_length

PAGE = Path(__file__).parents[1] / "docs/long_contexts.md"
TITLES = {"dense": "EAGLE-3", "dflash": "DFlash", "long": "EAGLE-3, long pair"}

Views = dict[str, tuple[int | None, int]]  # name -> window, first tokens beside it


def views_of(windows: Sequence[int], firsts: Sequence[int]) -> Views:
    found: Views = {FULL: (None, 0)}
    return found | {f"{window}+{first}": (window, first) for window in windows for first in firsts}


def held_out(tokenizer: Any, context: int, texts: int) -> list[list[int]]:
    """Pieces of the held-out stream at equal distances; they do not overlap."""
    stream = encode_stream(tokenizer, list(read_corpus().held_out.values()))
    step = (len(stream) - context) // max(1, texts - 1)
    if step < context:
        raise SystemExit(f"the held-out files have {len(stream)} tokens: fewer --texts")
    return [stream[n * step : n * step + context].tolist() for n in range(texts)]


@torch.inference_mode()
def continued(target: Any, prompt: list[int], tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    asked = {"do_sample": False, "min_new_tokens": tokens, "max_new_tokens": tokens}
    found: list[int] = target.generate(ids, attention_mask=torch.ones_like(ids), **asked)[0].tolist()
    return found


@torch.inference_mode()
def eagle3_drafts(
    reference: Eagle3Reference, tokens: list[int], aux: Any, starts: range, k: int, views: Views
) -> Iterator[tuple[str, int, list[int]]]:
    """Keys and values of a single layer follow from a row's inputs alone: all views share them."""
    assert reference.layers == 1
    _, _, cache = replace(reference, windows=(1,), first=0).true_rows(tokens, aux)
    fused = reference.fuse(aux)
    for name, (window, first) in views.items():
        one = replace(reference, windows=(window,), first=first)
        for start in starts:
            before = cache[:start]
            logits, feedback = one.row(tokens[start + 1], fused[start], start, before)
            rows: Any = ({start: logits}, {start: feedback}, before)
            yield name, start, one.draft(start, k, rows).tokens


@torch.inference_mode()
def dflash_drafts(
    walk: DFlashWalk, tokens: list[int], aux: Any, starts: range, k: int, views: Views
) -> Iterator[tuple[str, int, list[int]]]:
    rows = walk.true_rows(tokens, aux)
    for name, (window, first) in views.items():
        windows = [window] * walk.reference.layers
        one = DFlashWalk(replace(walk.reference, windows=windows, first=first))
        for start in starts:
            yield name, start, one.draft(start, k, rows).tokens


def measure(job: argparse.Namespace, context: int) -> dict[str, list[float]]:
    """View -> of each text, tokens of a step that starts at any of its tokens."""
    target, tokenizer = load_target(job.target), AutoTokenizer.from_pretrained(job.target)
    views = views_of(job.windows, job.firsts)
    facts = TargetFacts.from_config(read_config(job.target), Path(job.target))
    setting = Setting(method=job.method, k=job.k, max_model_len=context + job.tokens)
    spec = inspect_draft(read_draft_files(job.draft), facts, setting).spec
    assert spec is not None
    reference: Any = load_reference(spec, Path(job.draft), target)
    drafts = eagle3_drafts if isinstance(reference, Eagle3Reference) else dflash_drafts
    found: dict[str, list[float]] = {name: [] for name in views}
    for prompt in held_out(tokenizer, context, job.texts):
        tokens = continued(target, prompt, job.tokens)
        aux = residual_stream(target, tokens, spec.aux_layers.layer_ids)
        starts = range(context - 1, len(tokens) - 1 - job.k)
        lengths: dict[str, list[int]] = {name: [] for name in views}
        for name, start, drafted in drafts(reference, tokens, aux, starts, job.k, views):
            lengths[name].append(1 + accepted_length(drafted, tokens[start + 2 :]))
        for name, ones in lengths.items():
            found[name].append(statistics.mean(ones))
    return found


def summary(found: dict[str, list[float]]) -> dict[str, Any]:
    """Means over the texts, and what the first tokens add to a window, with its standard error."""
    told: dict[str, Any] = {}
    for name, lengths in found.items():
        told[name] = {"length": round(statistics.mean(lengths), 3)}
        window, _, first = name.partition("+")
        if first not in ("", "0"):
            gains = [a - b for a, b in zip(lengths, found[f"{window}+0"], strict=True)]
            error = statistics.stdev(gains) / len(gains) ** 0.5
            told[name] |= {"gain": round(statistics.mean(gains), 3), "error": round(error, 3)}
        told[name]["texts"] = [round(length, 3) for length in lengths]
    return told


def page_table() -> str:
    """A line per pair and context; of the first tokens, what they add, with its standard error."""
    lines, views = [], {}
    for pair, title in TITLES.items():
        for context, views in json.loads(result_file(pair).read_text())["contexts"].items():
            lines.append((title, context, *map(shown, views.values())))
    return table(("pair", "context", *(name.removesuffix("+0") for name in views)), lines)


def shown(view: dict[str, Any]) -> str:
    if "gain" in view:
        return f"{view['gain']:+.2f} ({view['error']:.2f})"
    return f"{view['length']:.2f}"


def result_file(pair: str) -> Path:
    return RESULTS / f"first_tokens_{pair}_cpu.json"


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default=str(TINY / "target"))
    parser.add_argument("--draft", default=str(TINY / "postnorm"))
    parser.add_argument("--method", default="eagle3")
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("--windows", type=numbers, default=[64, 128])
    parser.add_argument("--firsts", type=numbers, default=[0, 4, 16], help="with 0 among them")
    parser.add_argument("--contexts", type=numbers, default=[1000])
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--write", choices=TITLES, help="write the figures under results/")
    parser.add_argument("--page", action="store_true", help="write the page, measure nothing")
    job = parser.parse_args()
    if job.page:
        PAGE.write_text(filled(PAGE.read_text(), {"first": page_table()}))
        return
    contexts = {}
    for context in job.contexts:
        contexts[str(context)] = summary(measure(job, context))
        for name, told in contexts[str(context)].items():
            gain = f"  {told['gain']:+.3f} +- {told['error']:.3f}" if "gain" in told else ""
            print(f"{context:6}  {name:8}  {told['length']:.3f}{gain}", flush=True)
    if job.write:
        document = {"command": " ".join(["python -m benchmarks.first_tokens", *sys.argv[1:]]),
                    "machine": machine(), "contexts": contexts}  # fmt: skip
        result_file(job.write).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
