# SPDX-License-Identifier: Apache-2.0
"""The rows of an output head, the draft's or the target's, that the option `draft_vocabulary` keeps.

vLLM builds the head of a reduced vocabulary, and maps its ids into the target's. Where a draft has no
head, vLLM would then put the target's whole head in its place.

Maths: FR-Spec (arXiv 2502.14856).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.lora.layers.base import BaseLayerWithLoRA
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from vllm_eagle_ext.draft.vocabulary import OPTION
from vllm_eagle_ext.errors import UnsupportedTargetError
from vllm_eagle_ext.families.parts.after_reload import AfterReload

_AT_ONCE = 4096  # rows, while other memory may be taken
_PLAIN = (UnquantizedEmbeddingMethod, UnquantizedLinearMethod)


class KeptRows:
    """The built head of a draft, [N, H] over all ranks, and which rows of a whole head it holds."""

    def __init__(self, head: Any, ids: Sequence[int]) -> None:
        self.head = head
        self._ids = torch.tensor(ids)  # stays on the host: level 2 sleep takes the device's memory
        self._source: Any = None

    @property
    def is_filled(self) -> bool:
        """Tell whether the rows are the target's."""
        return self._source is not None

    @property
    def offsets(self) -> torch.Tensor:  # [N]
        """Return the map into the target's vocabulary, as vLLM's drafters hold it."""
        return self._ids - torch.arange(len(self._ids))

    def arranged(
        self, weights: Iterable[tuple[str, torch.Tensor]], seen: set[str]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the map, and the draft's tensors with the kept rows of a head of its own."""
        seen.add("d2t")
        yield "d2t", self.offsets
        for name, tensor in weights:
            yield name, tensor[self._ids.to(tensor.device)] if name == "lm_head.weight" else tensor

    def fill_from(self, head: Any) -> None:
        """Take the rows of the target's head, now and whenever vLLM has loaded that one again.

        Raises:
            UnsupportedTargetError: one of both heads is not plain.
        """
        source = head.base_layer if isinstance(head, BaseLayerWithLoRA) else head
        for whose, each in (("target", source), ("draft", self.head)):
            _require_plain(whose, each)
        self._source = source
        source.add_module("eagle_ext_kept_rows", AfterReload(self._fill))
        self._fill()

    @torch.no_grad()
    def _fill(self) -> None:
        """Fill in place, since captured graphs read the weight; CPU kernels pack a copy of it anew."""
        shard, weight = self.head.shard_indices, self.head.weight.data
        first, last = shard.org_vocab_start_index, shard.org_vocab_end_index
        for begin in range(0, len(self._ids), _AT_ONCE):
            rows = rows_of(self._source, self._ids[begin : begin + _AT_ONCE].to(weight.device))
            low, high = max(first, begin), min(last, begin + len(rows))
            if low < high:
                weight[low - first : high - first] = rows[low - begin : high - begin]
        weight[last - first :] = 0
        self.head.quant_method.process_weights_after_loading(self.head)

    def require_filled(self) -> None:
        """Refuse to draft with a head that vLLM has built and never filled.

        Raises:
            UnsupportedTargetError: the target's class gave no head.
        """
        if not self.is_filled:
            raise UnsupportedTargetError(
                field="output head that vLLM shares with the draft",
                value=None,
                allowed="the target's: its rows make the head of this draft, which has none",
                remedy=f"leave {OPTION} out",
            )


def rows_of(head: Any, ids: torch.Tensor) -> torch.Tensor:  # [n] -> [n, H], on every rank
    """Gather rows of a plain head; each lies on one rank, so that the sum over ranks is exact."""
    first, last = head.shard_indices.org_vocab_start_index, head.shard_indices.org_vocab_end_index
    inside = (ids >= first) & (ids < last)
    rows = functional.embedding((ids - first) * inside, head.weight)
    rows[~inside] = 0
    return tensor_model_parallel_all_reduce(rows) if head.tp_size > 1 else rows


def _require_plain(whose: str, head: Any) -> None:
    """Refuse a head without rows: packed or quantised, or one whose weight a CPU kernel has taken."""
    method = getattr(head, "quant_method", None)
    is_plain = isinstance(method, _PLAIN) and head.weight.dim() == 2 and hasattr(head, "shard_indices")
    if not is_plain:
        raise UnsupportedTargetError(
            field=f"kind of output head of the {whose}",
            value=type(method or head).__name__,
            allowed=f"plain weights, whose rows can be kept, with {OPTION}",
            remedy="leave the option out, or quantise the model without its head",
        )
