"""Kernels that are wrong in one way each, and in which part of a step the self-check must see it."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import torch

from vllm_eagle_ext.replay.self_check.compared import Kernels

# How they are broken -> the parts that differ. Records are inputs, and the same whatever is computed.
SEEN = {
    "decay dropped": {"outputs", "states"},
    "one head of the outputs": {"outputs"},
    "outputs without a number": {"outputs"},
    "a verify that moves the state": {"states"},
    "another request's record": {"recorded inputs", "states"},
    "wrong row committed": {"states", "conv states"},
    "plan one row short": {"plan", "states", "conv states"},
    "block end missed": {"states", "conv states"},
    "null block written": {"other bytes"},
    "a block of nobody written": {"other bytes"},
    "conv states one column off": {"conv states"},
    "no commit": {"states", "conv states"},
}


def broken(kernels: Kernels, how: str) -> Kernels:
    right = kernels.module
    changed = {
        "decay dropped": _verify(right, before=lambda made: made.gating.A_log.fill_(-60.0)),
        "one head of the outputs": _verify(right, after=lambda made: made.out[:, -1].mul_(1.01)),
        "outputs without a number": _verify(right, after=lambda made: made.out.fill_(float("nan"))),
        "a verify that moves the state": _verify(right, after=_move_state),
        "another request's record": _verify(right, after=_confuse_records),
        "plan one row short": {"plan": _short_plan(right)},
        "wrong row committed": _commit(right, change=_one_row_less),
        "block end missed": _commit(
            right, change=lambda plan: plan._replace(block_end=torch.zeros_like(plan.block_end))
        ),
        "null block written": _commit(right, after=lambda cache: cache.state[0].add_(1)),
        "a block of nobody written": _commit(right, after=_write_a_block_of_nobody),
        "conv states one column off": _commit(right, after=_turn_conv_states),
        "no commit": {"Commit": lambda *_: lambda *_: None},
    }[how]
    return kernels._replace(module=SimpleNamespace(**_parts(right) | changed))


def _parts(right: Any) -> dict[str, Any]:
    return {"verify": right.verify, "plan": right.plan, "Commit": right.Commit}


def _verify(right: Any, before: Any = None, after: Any = None) -> dict[str, Any]:
    def verify(rows: Any, gating: Any, cache: Any, batch: Any, out: Any) -> None:
        # Of its own, lest vLLM's kernel read it, too.
        own = type(gating)(*(part.clone() for part in gating))
        made = SimpleNamespace(gating=own, cache=cache, batch=batch, out=out)
        if before:
            before(made)
        right.verify(rows, own, cache, batch, out)
        if after:
            after(made)

    changed: dict[str, Any] = {"verify": verify}
    if before:
        changed["Commit"] = lambda layers, history: right.Commit(
            [_gated(layer, before) for layer in layers], history
        )
    return changed


def _gated(layer: Any, change: Any) -> Any:
    cache, gating, *others = layer
    own = type(gating)(*(part.clone() for part in gating))
    change(SimpleNamespace(gating=own))
    return (cache, own, *others)


def _commit(right: Any, change: Any = None, after: Any = None) -> dict[str, Any]:
    def make(layers: Any, history: int) -> Any:
        apply = right.Commit(layers, history)

        def run(batch: Any, plan: Any) -> None:
            apply(batch, change(plan) if change else plan)
            for cache, *_ in layers if after else ():
                after(cache)

        return run

    return {"Commit": make}


def _one_row_less(plan: Any) -> Any:
    return plan._replace(rows_to_commit=(plan.rows_to_commit - 1).clamp(min=0))


def _short_plan(right: Any) -> Any:
    def plan(*args: Any) -> None:
        right.plan(*args)
        args[-1].rows_to_commit.sub_(1).clamp_(min=1)

    return plan


def _write_a_block_of_nobody(cache: Any) -> None:
    """It lies behind the requests' and those that they go on with, before as many scratch blocks."""
    requests = next(n for n in count(1) if 2 * n + 2 + -(-n // 4) == len(cache.conv))
    cache.conv[requests + 1 + -(-requests // 4)].add_(1)


def _turn_conv_states(cache: Any) -> None:
    """Of one request; W is 4."""
    cache.conv[2, :, :3] = cache.conv[2, :, :3].roll(1, -1)


def _blocks(batch: Any) -> list[int]:
    return [block for block in batch.state_blocks.tolist() if block > 0]


def _move_state(made: Any) -> None:
    made.cache.state[_blocks(made.batch)[0]] *= 0.999


def _confuse_records(made: Any) -> None:
    blocks = _blocks(made.batch)  # of a single one, nothing is confused
    made.cache.records[blocks[-1], 0] = made.cache.records[blocks[0], 0]
