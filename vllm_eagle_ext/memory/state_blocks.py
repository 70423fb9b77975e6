# SPDX-License-Identifier: Apache-2.0
"""Counts the state blocks that a request takes in each recurrent layer, and names what they hold.

The count is vLLM's own: a state block is a KV-cache block of a recurrent layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Architecture of a target -> the one that replays its states. Names carry `EagleExt`, so that a node
# without this package fails with a name that tells.
REPLAYING_TARGETS = {
    "Qwen3NextForCausalLM": "Qwen3NextEagleExtForCausalLM",
    "Qwen3_5ForCausalLM": "Qwen3_5EagleExtForCausalLM",
    "Qwen3_5MoeForCausalLM": "Qwen3_5MoeEagleExtForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5EagleExtForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeEagleExtForConditionalGeneration",
    "InternS2PreviewForConditionalGeneration": "InternS2PreviewEagleExtForConditionalGeneration",
    "InternS2MobiusForConditionalGeneration": "InternS2MobiusEagleExtForConditionalGeneration",
    "MiniCPMV4_6ForConditionalGeneration": "MiniCPMV4_6EagleExtForConditionalGeneration",
    "MiniCPMV4_7ForConditionalGeneration": "MiniCPMV4_7EagleExtForConditionalGeneration",
}
# `per_token`: vLLM keeps a state after each draft token. `replay`: only the committed state is kept, and
# the accepted tokens of a step are applied to it from their recorded inputs.
Scheme = Literal["per_token", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBlocks:
    """Lists the state blocks of one request, next to the one that holds its committed state."""

    draft_tokens: int  # a state after each of them
    at_block_boundary: bool  # prefix caching keeps the state at the end of a KV-cache block
    scratch: bool  # the CPU's operator writes into state blocks, so that replay needs one to discard
    exported: bool = False  # FlashInfer's prefill writes the state at a block's end while it goes on

    @property
    def count(self) -> int:
        return 1 + self.draft_tokens + self.at_block_boundary + self.exported + self.scratch

    def __str__(self) -> str:
        uses = ["committed state"]
        if self.draft_tokens:
            uses.append(f"{self.draft_tokens} draft token{'' if self.draft_tokens == 1 else 's'}")
        if self.at_block_boundary:
            uses.append("block boundary of prefix caching")
        if self.exported:
            uses.append("state exported by the prefill")
        if self.scratch:
            uses.append("CPU scratch")
        return f"{counted(self.count)} per request ({', '.join(uses)})"


def state_blocks(
    scheme: Scheme, *, k: int, prefix_caching: bool, cpu: bool, prefill_exports: bool = False
) -> StateBlocks:
    """Count the blocks that `scheme` takes for `k` draft tokens.

    Args:
        prefill_exports: vLLM's prefill can export states, as `Device.prefill_exports` says.
    """
    replays = scheme == "replay"
    return StateBlocks(
        draft_tokens=0 if replays else k, at_block_boundary=prefix_caching, scratch=replays and cpu,
        exported=prefix_caching and prefill_exports,
    )  # fmt: skip


def counted(count: int) -> str:
    return "1 state block" if count == 1 else f"{count} state blocks"


def record_width(key_heads: int, key_dim: int, value_heads: int, value_dim: int) -> int:
    """Count the elements recorded for one verified token in one layer: key, value, a and b."""
    return key_heads * key_dim + value_heads * value_dim + 2 * value_heads
