# SPDX-License-Identifier: Apache-2.0
"""Torch operations of a decoding step, stock vLLM against this package.

    python -m benchmarks.operation_counts

Counts do not depend on how busy a machine is: what the package adds to a step is named, operation by
operation. On a CPU the workarounds for its backend are part of it; on a GPU none is installed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.machine import machine
from benchmarks.performance import ENVIRONMENT
from vllm_eagle_ext.measure.engine.client import EngineProcess
from vllm_eagle_ext.measure.engine.load import Load
from vllm_eagle_ext.measure.engine.probe import is_decoding
from vllm_eagle_ext.measure.prompts import read_texts, token_ids

RESULTS = Path(__file__).parent / "results"
TINY = Path("examples/tiny")
LOGS = Path("build/operation_counts")
DRAFTS = {
    "native": ("target", "eagle3", 4, {}),
    "postnorm": ("target", "eagle3", 4, {}),
    "dflash, per_token": ("hybrid_target", "dflash", 7, {"hybrid_state": "per_token"}),
    "dflash, replay": ("hybrid_target", "dflash", 7, {}),
}


class _Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found[str(func)] += 1
        return func(*args, **(kwargs or {}))


class OperationCounter:
    """Mixed into vLLM's worker: operations of its decoding steps of one request, by name."""

    model_runner: Any
    vllm_config: Any

    def count_operations(self) -> None:
        speculative = self.vllm_config.speculative_config
        self._k = speculative.num_speculative_tokens if speculative else 0
        self._steps, self._total, self._current = 0, Counter(), Counter()
        self._decoding = False
        for name in ("execute_model", "sample_tokens"):
            setattr(self.model_runner, name, self._counted(getattr(self.model_runner, name), name))

    def operations(self) -> dict[str, Any]:
        return {"steps": self._steps, "operations": dict(self._total)}

    def _counted(self, inner: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "execute_model":
                self._decoding = is_decoding(args[0], self._k, 1)
            with _Count() as count:
                result = inner(*args, **kwargs)
            if self._decoding:
                self._total += count.found
                self._steps += name == "sample_tokens"
            return result

        return call


def operations(draft: str, *, ours: bool) -> dict[str, float]:
    """Count per step, while one request runs."""
    target, method, k, options = DRAFTS[draft]
    folder = str(TINY / draft.partition(",")[0])
    arguments: dict[str, Any] = {
        "model": str(TINY / target), "max_model_len": 1024, "enforce_eager": True,
        "gpu_memory_utilization": 0.3, "enable_prefix_caching": False,
        "speculative_config": {"method": method, "model": folder, "num_speculative_tokens": k},
        "worker_extension_cls": "benchmarks.operation_counts.OperationCounter",
    }  # fmt: skip
    if ours and options:
        arguments["additional_config"] = {"eagle_ext": options}
    texts = read_texts(str(TINY / "prompts.jsonl"), count=3)
    prompts = token_ids(texts, str(TINY / target), chat_template=False).ids
    LOGS.mkdir(parents=True, exist_ok=True)
    with EngineProcess(arguments, LOGS / "engine.log", name=draft, plugin=ours) as engine:
        engine.rpc("count_operations")
        engine.load(Load(prompts, max_tokens=48, ignore_eos=True))
        found = engine.rpc("operations")[0]
    return {name: count / found["steps"] for name, count in found["operations"].items()}


def compare(draft: str) -> dict[str, Any]:
    stock, ours = (operations(draft, ours=with_us) for with_us in (False, True))
    names = sorted(stock.keys() | ours.keys())
    more = {name: round(ours.get(name, 0) - stock.get(name, 0), 2) for name in names}
    return {
        "stock": round(sum(stock.values()), 2),
        "ours": round(sum(ours.values()), 2),
        "ours_less_stock": {name: count for name, count in more.items() if count},
    }


def main() -> None:
    os.environ.update(ENVIRONMENT)
    found: dict[str, Any] = {"command": "python -m benchmarks.operation_counts", "machine": machine()}
    found["per_step"] = {draft: compare(draft) for draft in DRAFTS}
    (RESULTS / "operation_counts_cpu.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["per_step"], indent=1))


if __name__ == "__main__":
    main()
