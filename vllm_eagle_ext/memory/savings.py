# SPDX-License-Identifier: Apache-2.0
"""Says what replay saves over vLLM's own scheme, in the words that a start logs and a plan prints."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_eagle_ext.memory.footprint import StateShare
from vllm_eagle_ext.memory.state_blocks import counted

MIB = 2**20
_OTHERWISE = "with one state block per draft token"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReport:
    """Holds the sizes that the line names, measured by an engine or computed by a plan."""

    state_blocks: int
    per_token_state_blocks: int
    state: int  # bytes per request
    per_token_state: int
    recorded_inputs: int  # bytes of `state`
    max_model_len: int
    fit: int
    per_token_fit: int

    def line(self) -> str:
        return (
            f"Recurrent state: replay, {counted(self.state_blocks)} per request "
            f"(per_token: {self.per_token_state_blocks}): "
            f"{mib(self.state)} MiB instead of {mib(self.per_token_state)} MiB per request, "
            f"recorded inputs {mib(self.recorded_inputs)} MiB of it; "
            f"{self._fits()}."
        )

    def _fits(self) -> str:
        fits = requests_fit(self.fit, self.max_model_len)
        if self.fit == self.per_token_fit:
            same = {0: f"{_OTHERWISE} neither", 1: f"{_OTHERWISE} as well"}
            return f"{fits}, {same.get(self.fit, f'as many as {_OTHERWISE}')}"
        others = f" instead of {self.per_token_fit}" if self.per_token_fit else f", {_OTHERWISE} none"
        return f"{fits}{others}"


def report(replay: StateShare, per_token: StateShare, *, budget: int, max_model_len: int) -> StateReport:
    """Compare the two schemes at a KV budget in bytes."""
    return StateReport(
        state_blocks=replay.state_blocks, per_token_state_blocks=per_token.state_blocks,
        state=replay.state, per_token_state=per_token.state, recorded_inputs=replay.recorded_inputs,
        max_model_len=max_model_len, fit=replay.fit(budget), per_token_fit=per_token.fit(budget),
    )  # fmt: skip


def requests_fit(count: int, length: int) -> str:
    if count == 1:
        return f"1 request of {length} tokens fits"
    return f"{count} requests of {length} tokens fit" if count else f"no request of {length} tokens fits"


def mib(size: float) -> str:
    """Round to whole MiB, or to two digits of a small size."""
    value = size / MIB
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.2g}"
