# SPDX-License-Identifier: Apache-2.0
"""An engine of a tiny pair in this process, V1 runner, that notes its drafts' probabilities.

Only the benchmark reads them: a hook on the draft model's `compute_logits`, which vLLM calls once for a
block of DFlash and once per token of an EAGLE-3 chain, and a scheduler that sees what was accepted.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from benchmarks.calibration import Draft, keeps_product
from tests.support.engine import IN_PROCESS, TINY, engine_environment
from vllm_eagle_ext.measure.engine.held_length import schedule_of

SCHEDULER = "benchmarks.confidence_engine.build_recording_scheduler"
SETTLING = 3  # steps of all requests before the first that is timed
_NUMBERS = count()


@dataclass(frozen=True)
class Pair:
    target: str
    speculative: dict[str, Any]
    lengths: tuple[int, ...]  # that a cut-off is compared with


PAIRS = {
    "dense": Pair(
        "target",
        {"method": "eagle3", "model": str(TINY / "postnorm"), "num_speculative_tokens": 4},
        (0, 1, 3, 4),
    ),
    "hybrid": Pair(
        "hybrid_target",
        {"method": "dflash", "model": str(TINY / "dflash"), "num_speculative_tokens": 7},
        (0, 1, 3, 7),
    ),
}


@dataclass(frozen=True)
class Arm:
    """How a step drafts: a fixed length, or all K tokens with their tails cut before verification."""

    length: int
    cut_off: float | None = None

    @property
    def name(self) -> str:
        return f"K={self.length}" if self.cut_off is None else "cut-off"


def build_recording_scheduler(*args: Any, vllm_config: Any, **kwargs: Any) -> Any:
    """Build a subclass of vLLM's scheduler; vLLM calls this for a class."""
    from vllm.v1.core.sched.scheduler import Scheduler

    return _recording(Scheduler)(*args, vllm_config=vllm_config, **kwargs)


def _recording(parent: Any) -> Any:
    from vllm.v1.outputs import DraftTokenIds

    class RecordsConfidence(parent):
        """Knows each draft's probabilities, cuts drafts by them, and records what was accepted."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.arm: Arm | None = None
            self.records = False
            self.noted: list[torch.Tensor] = []  # of the running step, in the order of its calls
            self.recorded: list[Draft] = []
            self._made: dict[str, tuple[float, ...]] = {}

        def _update_after_schedule(self, scheduler_output: Any) -> None:
            self.noted.clear()
            if self.arm is not None and scheduler_output.num_scheduled_tokens:
                scheduler_output.num_spec_tokens_to_schedule = self.arm.length
            super()._update_after_schedule(scheduler_output)

        def update_draft_token_ids(self, draft_token_ids: Any) -> None:
            names, drafts = draft_token_ids.req_ids, draft_token_ids.draft_token_ids
            if self.noted:
                rows = torch.cat([each.view(len(names), -1) for each in self.noted], dim=1)  # [B, K]
                self._made = dict(zip(names, map(tuple, rows.tolist()), strict=True))
                if self.arm is not None and self.arm.cut_off is not None:
                    keep = keeps_product(self.arm.cut_off)
                    drafts = [
                        draft[: keep(self._made[name])]
                        for name, draft in zip(names, drafts, strict=True)
                    ]
            super().update_draft_token_ids(DraftTokenIds(names, drafts))

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            """Record before the parent, which cuts the tokens of a request that ends."""
            if self.records:
                self._record(scheduler_output, model_runner_output)
            return super().update_from_output(scheduler_output, model_runner_output)

        def _record(self, step: Any, output: Any) -> None:
            for name, tokens in step.scheduled_spec_decode_tokens.items():
                made = self._made.get(name, ())
                sampled = output.sampled_token_ids[output.req_id_to_index[name]]
                if sampled and len(tokens) == len(made):
                    self.recorded.append(Draft(made, len(sampled) - 1))

    return RecordsConfidence


def start(pair: Pair, requests: int) -> tuple[Any, Any]:
    """Start an engine for up to so many requests; return it and its scheduler."""
    os.environ.update({**engine_environment("v1"), **IN_PROCESS})
    from vllm import LLM

    k = pair.speculative["num_speculative_tokens"]
    menu = sorted({*pair.lengths, k})
    llm = LLM(
        model=str(TINY / pair.target),
        max_model_len=1024,
        max_num_seqs=requests,
        enforce_eager=True,
        enable_prefix_caching=False,
        async_scheduling=False,
        gpu_memory_utilization=0.3,
        seed=0,
        scheduler_cls=SCHEDULER,
        speculative_config={
            **pair.speculative,
            "num_speculative_tokens_per_batch_size": [list(entry) for entry in schedule_of(menu)],
        },
    )
    core = llm.llm_engine.engine_core.engine_core
    scheduler = core.scheduler
    scheduler.arm = Arm(k)
    hook(core.model_executor.driver_worker.worker.model_runner.drafter.model, scheduler)
    return llm, scheduler


def hook(model: Any, scheduler: Any) -> None:
    """Note the largest probability of each row, [T], where the scheduler has use for it."""
    compute_logits = model.compute_logits

    def noting(*args: Any, **kwargs: Any) -> torch.Tensor:  # [T, H] -> [T, V]
        logits: torch.Tensor = compute_logits(*args, **kwargs)
        if scheduler.records or scheduler.arm.cut_off is not None:
            scheduler.noted.append(logits.float().softmax(-1).amax(-1))
        return logits

    model.compute_logits = noting


def record(llm: Any, scheduler: Any, prompts: Sequence[list[int]], tokens: int) -> list[Draft]:
    """Write `tokens` greedy tokens behind each prompt; return the drafts that were verified whole."""
    from vllm import SamplingParams

    scheduler.recorded.clear()
    scheduler.records = True
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": each} for each in prompts], sampling, use_tqdm=False)
    scheduler.records = False
    return list(scheduler.recorded)


def tokens_per_cpu_s(llm: Any, scheduler: Any, prompts: Sequence[list[int]], steps: int) -> float:
    """Decode all prompts at once; tokens of a step, over the median of its seconds of this process.

    Timed are steps in which each request gets tokens, and none its first.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine, names = llm.llm_engine, [f"timed-{next(_NUMBERS)}" for _ in prompts]
    sampling = SamplingParams(
        temperature=0, max_tokens=None, ignore_eos=True, detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )  # fmt: skip
    for name, prompt in zip(names, prompts, strict=True):
        engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
    begun: set[str] = set()
    seconds: list[float] = []
    tokens, settling = 0, SETTLING
    while len(seconds) < steps:
        before = time.process_time()
        outputs = engine.step()
        spent = time.process_time() - before
        found = {each.request_id: len(each.outputs[0].token_ids) for each in outputs}
        if len(begun) == len(names) == sum(map(bool, found.values())):
            settling -= 1
            if settling < 0:
                seconds.append(spent)
                tokens += sum(found.values())
        begun |= {name for name, got in found.items() if got}
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()
    return tokens / steps / statistics.median(seconds)
