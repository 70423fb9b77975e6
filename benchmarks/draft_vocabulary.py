# SPDX-License-Identifier: Apache-2.0
"""What a draft vocabulary costs in accepted tokens, and what it gains in step time.

    python -m benchmarks.draft_vocabulary [acceptance] [step_times]

Acceptance: the trained tiny pairs, whose drafts read the target's head. The ids are the most frequent
tokens of the target's own answers to other prompts. It does not depend on the machine's load.

Step time: shapes of real width with dummy weights, so that next to no draft is accepted. One engine
takes turns with the whole head and with heads of fewer rows; each ratio is of one round.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from benchmarks.gpu_shapes import write
from benchmarks.machine import machine
from benchmarks.performance import ENVIRONMENT
from benchmarks.shapes.dense import Dense
from tests.support.engine import lacks_avx512
from vllm_eagle_ext.measure.engine.client import EngineProcess
from vllm_eagle_ext.measure.engine.load import Load, StepLoad
from vllm_eagle_ext.measure.prompts import random_ids, read_prompts, token_ids
from vllm_eagle_ext.measure.vocabulary import choose
from vllm_eagle_ext.start.check import find_platform

RESULTS = Path(__file__).parent / "results/draft_vocabulary.json"
TINY, BUILD = Path("examples/tiny"), Path("build/draft_vocabulary")
COUNTED, ASKED, TOKENS = 80, 20, 96  # prompts whose answers are counted, and that are drafted for
PAIRS = {"native": ("target", "eagle3", 4), "dflash": ("hybrid_target", "dflash", 7)}
PARTS = (2, 4, 8)  # a half of the vocabulary, ..
_QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True}
_SMALL: dict[str, Any] = {
    "width": 1024, "inner": 3072, "heads": 16, "kv_heads": 8, "head_dim": 128, "positions": 4096,
    "outputs": (1, 4, 6),
}  # fmt: skip
SHAPES = {
    "Qwen3-0.6B, 151,936 tokens": Dense(layers=28, vocabulary=151936, draft_vocabulary=151936, **_SMALL),
    "8 such layers, 201,088 tokens": Dense(
        layers=8, vocabulary=201088, draft_vocabulary=201088, **_SMALL
    ),
}
K, ROUNDS, STEPS, PROMPT = 3, 16, 8, 200
REQUESTS = (1,)
_ROWS = 64  # vLLM pads heads to a multiple


class HeadSwapper:
    """Mixed into vLLM's worker: gives the draft another head while the engine runs."""

    def build_heads(self, entries: list[int]) -> None:
        """Build a head for each number of rows, as a start with the option does."""
        import torch
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.layers.logits_processor import LogitsProcessor
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        from vllm_eagle_ext.families.parts.kept_rows import KeptRows

        draft: Any = self.get_draft_model()  # type: ignore[attr-defined]
        source, size = draft.lm_head, draft.config.vocab_size
        self._heads = {0: (source, draft.logits_processor, None, size)}
        for count in entries:
            with set_current_vllm_config(self.vllm_config):  # type: ignore[attr-defined]
                head = ParallelLMHead(count, source.embedding_dim, params_dtype=source.weight.dtype)
                processor = LogitsProcessor(count)
            kept = KeptRows(head, range(0, count * (size // count), size // count))
            kept.fill_from(source)
            offsets = torch.nn.Parameter(kept.offsets, requires_grad=False)
            self._heads[count] = (head, processor, offsets, count)

    def use_head(self, count: int) -> None:
        draft: Any = self.get_draft_model()  # type: ignore[attr-defined]
        draft.lm_head, draft.logits_processor, draft.draft_id_to_target_id, rows = self._heads[count]
        draft.config.draft_vocab_size = rows


def acceptance(name: str) -> dict[str, Any]:
    """Measure drafted tokens that are accepted in a step, by the entries of the vocabulary."""
    target, method, k = PAIRS[name]
    draft = _without_head(TINY / name, BUILD / name)
    texts = [text for text, _ in read_prompts(str(TINY / "prompts.jsonl"), count=COUNTED + ASKED)]
    prompts = token_ids(texts, str(TINY / target), chat_template=False).ids
    arguments: dict[str, Any] = {
        "model": str(TINY / target), "max_model_len": 1024, "enforce_eager": True,
        "gpu_memory_utilization": 0.3, "enable_prefix_caching": False,
        "speculative_config": {"method": method, "model": str(draft), "num_speculative_tokens": k},
    }  # fmt: skip
    config = json.loads((TINY / target / "config.json").read_text())
    size = config.get("text_config", config)["vocab_size"]
    asked = Load(prompts[COUNTED:], concurrency=10, max_tokens=TOKENS, ignore_eos=True)
    with EngineProcess(arguments, BUILD / "engine.log", name=name) as engine:
        other = Load(prompts[:COUNTED], concurrency=10, max_tokens=TOKENS, ignore_eos=True)
        counted = Counter(token for text in engine.load(other).texts for token in text)
        whole = engine.load(asked)
    rows = [{"entries": size, "share": 1.0, "kept_of_counted": 1.0, "accepted": _accepted(whole)}]
    for part in PARTS:
        ids = choose(counted, size // part, size)
        (file := BUILD / f"{name}-{part}.json").write_text(json.dumps(ids))
        options = {"additional_config": {"eagle_ext": {"draft_vocabulary": str(file)}}}
        with EngineProcess(arguments | options, BUILD / "engine.log", name=name) as engine:
            measured = engine.load(asked)
        rows.append(
            {
                "entries": len(ids), "share": round(1 / part, 4),
                "kept_of_counted": round(sum(counted[token] for token in ids) / counted.total(), 4),
                "accepted": _accepted(measured),
                "same_texts": sum(a == b for a, b in zip(measured.texts, whole.texts, strict=True)),
            }
        )  # fmt: skip
    return {"k": k, "texts": ASKED, "rows": rows}


def _accepted(measured: Any) -> float:
    return round(sum(measured.accepted) / measured.drafts, 3)


def _without_head(source: Path, folder: Path) -> Path:
    config = json.loads((source / "config.json").read_text())
    if "draft_vocab_size" in config:
        config.pop("draft_vocab_size")
    tensors = load_file(source / "model.safetensors")
    return write(folder, config, {name: t for name, t in tensors.items() if name != "lm_head.weight"})


def step_times(name: str, shape: Dense) -> dict[str, Any]:
    """Time steps with each head in turn, and the ratio of the whole head's to it, round by round."""
    folder = BUILD / name.partition(",")[0].replace(" ", "_")
    target = write(folder / "target", shape.target() | _QWEN3)
    tensors = {n: t for n, t in shape.tensors().items() if n not in ("lm_head.weight", "d2t", "t2d")}
    config = shape.draft() | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(shape.outputs)}}
    draft = write(folder / "draft", config, tensors)
    dtype = "float32" if find_platform("auto")[0] == "cpu" and lacks_avx512() else "bfloat16"
    arguments: dict[str, Any] = {
        "model": str(target), "load_format": "dummy", "skip_tokenizer_init": True, "dtype": dtype,
        "max_model_len": 1024, "max_num_seqs": max(REQUESTS), "enforce_eager": True,
        "gpu_memory_utilization": 0.3, "enable_prefix_caching": True,
        "speculative_config": {
            "method": "eagle3", "model": str(draft), "num_speculative_tokens": K,
            "draft_load_config": {"load_format": "auto"},
        },
        "worker_extension_cls": "benchmarks.draft_vocabulary.HeadSwapper",
    }  # fmt: skip
    entries = [shape.vocabulary // part // _ROWS * _ROWS for part in PARTS]
    seconds: dict[tuple[int, int], list[float]] = {}
    with EngineProcess(arguments, BUILD / "engine.log", name=name) as engine:
        engine.rpc("build_heads", entries)
        for turn in range(ROUNDS + 1):  # the first is not counted
            for requests in REQUESTS:
                prompts = random_ids(requests, PROMPT, shape.vocabulary, seed=turn).ids
                for count in (0, *entries):
                    engine.rpc("use_head", count)
                    run = engine.steps(StepLoad(prompts, STEPS))
                    if turn:
                        seconds.setdefault((requests, count), []).append(statistics.median(run.seconds))
    return {
        "dtype": dtype, "k": K, "width": shape.width, "layers": shape.layers,
        "rows": [_ratio(requests, count, seconds) for requests in REQUESTS for count in entries],
        "whole_ms": {n: round(1e3 * statistics.median(seconds[n, 0]), 1) for n in REQUESTS},
    }  # fmt: skip


def _ratio(requests: int, count: int, seconds: dict[tuple[int, int], list[float]]) -> dict[str, Any]:
    pairs = zip(seconds[requests, 0], seconds[requests, count], strict=True)
    quarter, median, three_quarters = statistics.quantiles(whole / kept for whole, kept in pairs)
    return {
        "requests": requests, "entries": count, "times_faster": round(median, 3),
        "half_lie_between": [round(quarter, 3), round(three_quarters, 3)],
    }  # fmt: skip


PARTS_OF_IT: dict[str, Callable[[], dict[str, Any]]] = {
    "acceptance": lambda: {name: acceptance(name) for name in PAIRS},
    "step_times": lambda: {name: step_times(name, shape) for name, shape in SHAPES.items()},
}


def main() -> None:
    """Measure these parts, or both; a part that is not asked for stays as it was."""
    os.environ.update(ENVIRONMENT)
    BUILD.mkdir(parents=True, exist_ok=True)
    for part in sys.argv[1:] or PARTS_OF_IT:
        measured = {"machine": machine(), "found": PARTS_OF_IT[part]()}
        report = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        report |= {"command": "python -m benchmarks.draft_vocabulary", part: measured}
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")
        print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
