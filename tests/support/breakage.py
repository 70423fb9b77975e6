"""Ways to break a replay, for the tests that must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

BREAKAGES = ("one row short", "stale conv state", "other beta", "no commit")
NO_BLOCK_END = "no block end"  # seen where a prefix cache hands out the state at a block boundary
UNPACKED = "unpacked"  # as on a CPU that packs no convolutions
PACKED_LET_THROUGH = "packed let through"  # without the refusal of packed ones
ON_A_DEVICE = "on a device"  # stand-ins for what vLLM trims drafts with on a GPU
HOLE = "a hole in the draft's cache"  # after steps without drafts
KEYS_NORMED = "keys normed"  # vLLM's own DFlash2 and DSpark repaired as on a GPU


def apply(how: str, set_attribute: Callable[[Any, str, Any], None]) -> None:
    """`set_attribute`: that of pytest's monkeypatch, which undoes it."""
    if how == UNPACKED:
        set_attribute(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
        return
    if how == ON_A_DEVICE:
        from tests.support.adaptive import stand_in_for_a_device

        stand_in_for_a_device(set_attribute)
        return
    if how == KEYS_NORMED:
        from tests.support import triton_on_cpu

        triton_on_cpu.norm_each_layers_keys(set_attribute)
        return
    if how == HOLE:
        from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer as Proposer

        propose = Proposer.propose

        def without_a_pass(self: Any, num_speculative_tokens: int, **inputs: Any) -> torch.Tensor:
            if num_speculative_tokens == 0:
                return inputs["next_token_ids"].new_empty(len(inputs["next_token_ids"]), 0)
            return propose(self, num_speculative_tokens, **inputs)

        set_attribute(Proposer, "propose", without_a_pass)
        return
    from vllm_eagle_ext.replay.ops import cpu
    from vllm_eagle_ext.start.rules import states

    plan, rows = cpu.plan, cpu._rows

    def short(*args: Any) -> None:
        plan(*args)
        args[-1].rows_to_commit.sub_(1).clamp_(min=1)

    def without_block_end(*args: Any) -> None:
        plan(*args)
        args[-1].block_end.zero_()

    def changed(*args: Any) -> Any:
        right = rows(*args)
        return right._replace(b=-right.b)

    set_attribute(
        *{
            "one row short": (cpu, "plan", short),
            "stale conv state": (cpu, "_conv_moves", lambda *_: []),
            "other beta": (cpu, "_rows", changed),
            NO_BLOCK_END: (cpu, "plan", without_block_end),
            PACKED_LET_THROUGH: (states, "per_token_misreads", lambda _: False),
            "no commit": (cpu.Commit, "__call__", lambda *_: None),
        }[how]
    )  # fmt: skip
