# SPDX-License-Identifier: Apache-2.0
"""What is asked of a worker from within: what it serves, and the parts of a step.

    LLM(worker_extension_cls="vllm_eagle_ext.measure.engine.probe.StepProbe")

vLLM mixes the class into its worker. Only the engines that `bench`, `tune` and `verify` start name it;
no other process that serves imports anything of `measure`. It imports nothing of this package's plugin
and changes nothing until it is asked to, so that it measures an engine of stock vLLM alike.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class StepProbe:
    """Methods for `LLM.collective_rpc`; vLLM refuses names that its worker has, hence the prefix."""

    model_runner: Any
    vllm_config: Any
    _eagle_ext_clock: StepClock | None = None

    def eagle_ext_facts(self) -> dict[str, Any]:
        from vllm.platforms import current_platform

        runner = self.model_runner
        draft = runner.get_draft_model()
        groups = [*runner.attn_groups, *getattr(_speculator(runner), "attn_groups", [])]
        return {
            "target": type(runner.get_model()).__name__,
            "drafter": type(draft).__name__ if draft is not None else None,
            "attention": sorted({one.backend.get_name() for group in groups for one in group}),
            "runner": "v2" if self.vllm_config.use_v2_model_runner else "v1",
            "state": self._eagle_ext_state(),
            "device": current_platform.get_device_name(),
            "kv_cache_blocks": runner.kv_cache_config.num_blocks,
            "plugin": "vllm_eagle_ext.plugin" in sys.modules,
        }

    def eagle_ext_accept_by_lot(self) -> None:
        """Let a CPU's V1 runner take a synthetic acceptance, as every other runner does by itself."""
        from vllm_eagle_ext.compat import accept_by_lot

        accept_by_lot()

    def eagle_ext_time_steps(self, requests: int) -> dict[str, float]:
        """Time steps until called with 0; then give the means over decoding steps.

        A decoding step schedules no prompt tokens, and all K drafts of each of its `requests`.
        """
        clock, self._eagle_ext_clock = self._eagle_ext_clock, None
        if clock is not None:
            clock.stop()
        if requests:
            speculative = self.vllm_config.speculative_config
            k = speculative.num_speculative_tokens if speculative else 0
            self._eagle_ext_clock = StepClock(
                self.model_runner, k, requests, _drain(self.model_runner.device)
            )
        return clock.means() if clock else StepClock.nothing()

    def _eagle_ext_state(self) -> str | None:
        """Say how recurrent states are kept; None without any, or without a draft."""
        from vllm.v1.kv_cache_interface import MambaSpec

        groups = self.model_runner.kv_cache_config.kv_cache_groups
        if not self.vllm_config.speculative_config or not any(
            isinstance(group.kv_cache_spec, MambaSpec) for group in groups
        ):
            return None
        ours = sys.modules.get("vllm_eagle_ext.replay.layer")  # not loaded: no layer is ours
        layers = self.vllm_config.compilation_config.static_forward_context.values()  # with a cache
        replay = ours is not None and any(
            isinstance(layer, ours.ReplayGatedDeltaNetAttention) for layer in layers
        )
        return "replay" if replay else "per_token"


@dataclass(slots=True)
class _Step:
    counts: bool
    seconds: float = 0.0
    draft_s: float = 0.0
    drafted: bool = False


class StepClock:
    """Times the steps of a runner from its making to `stop`.

    Args:
        runner: V1's or V2's; attributes of the instance are set, and taken back.
        requests: of the steps that count.
        drain: waits until the device has done all that it was given.
    """

    def __init__(self, runner: Any, k: int, requests: int, drain: Callable[[], None]) -> None:
        self.k, self.requests, self.drain = k, requests, drain
        self._steps: list[_Step] = []
        self._step = _Step(counts=False)
        self._before: list[tuple[Any, str, bool, Any]] = []
        self._wrap(runner, "execute_model", self._execute)
        self._wrap(runner, "sample_tokens", self._sample)
        if (speculator := _speculator(runner)) is not None:
            self._wrap(speculator, "propose", self._draft)
        elif k:
            self._wrap(runner, "propose_draft_token_ids", self._draft)

    def stop(self) -> None:
        while self._before:
            owner, name, had, value = self._before.pop()
            if had:
                setattr(owner, name, value)
            else:
                delattr(owner, name)

    def means(self) -> dict[str, float]:
        found = [step for step in self._steps if step.counts and step.drafted == bool(self.k)]
        if not found:
            return self.nothing()
        draft_s = sum(step.draft_s for step in found) / len(found)
        whole_s = sum(step.seconds for step in found) / len(found)
        return {"steps": len(found), "target_s": whole_s - draft_s, "draft_s": draft_s}

    @staticmethod
    def nothing() -> dict[str, float]:
        return {"steps": 0, "target_s": 0.0, "draft_s": 0.0}

    def _wrap(self, owner: Any, name: str, timed: Callable[..., Any]) -> None:
        inner, own = getattr(owner, name), vars(owner)
        self._before.append((owner, name, name in own, own.get(name)))
        setattr(owner, name, lambda *args, **kwargs: timed(inner, *args, **kwargs))

    def _execute(self, inner: Callable[..., Any], scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        self._step = _Step(counts=is_decoding(scheduled, self.k, self.requests))
        result, seconds = self._timed(inner, scheduled, *args, **kwargs)
        self._step.seconds += seconds
        return result

    def _sample(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result, seconds = self._timed(inner, *args, **kwargs)
        self._step.seconds += seconds
        self._steps.append(self._step)
        self._step = _Step(counts=False)
        return result

    def _draft(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result, seconds = self._timed(inner, *args, **kwargs)
        self._step.draft_s += seconds
        self._step.drafted = True
        return result

    def _timed(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, float]:
        self.drain()
        started = time.perf_counter()
        result = inner(*args, **kwargs)
        self.drain()
        return result, time.perf_counter() - started


def is_decoding(scheduled: Any, k: int, requests: int) -> bool:
    """Say whether a step, vLLM's SchedulerOutput, decodes all requests and nothing else."""
    old, drafts = scheduled.scheduled_cached_reqs, scheduled.scheduled_spec_decode_tokens
    if (
        scheduled.scheduled_new_reqs
        or old.resumed_req_ids
        or len(scheduled.num_scheduled_tokens) != requests
    ):
        return False
    if 0 in old.num_output_tokens:  # a later chunk of a prompt
        return False
    return all(
        tokens == 1 + k and len(drafts.get(request, ())) == k
        for request, tokens in scheduled.num_scheduled_tokens.items()
    )


def _speculator(runner: Any) -> Any:
    """Find V2's speculator; V1 keeps its drafter under another name, and calls it from one place."""
    return getattr(runner, "speculator", None)


def _drain(device: Any) -> Callable[[], None]:
    import torch

    return (lambda: None) if device.type == "cpu" else torch.accelerator.synchronize
