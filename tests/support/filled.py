"""A worker extension that counts the rows that a sleeping draft writes afterwards, or leaves out."""

from __future__ import annotations

from typing import Any

from tests.support.placed import Placed

UNFILLED = "unfilled"  # in the name of a batch whose draft wakes without its cache


class Filled(Placed):
    """Mixed into vLLM's worker by `worker_extension_cls`; reached through `collective_rpc`."""

    def start_filling(self, leave_out: bool) -> None:
        self.filled: list[tuple[int, int]] = []
        draft = getattr(getattr(self.model_runner, "drafter", None), "model", None)
        if getattr(draft, "deferred", None) is None:
            return
        fill = type(draft).fill_cache

        def counting(rows: Any) -> None:
            self.filled.append((len(rows.places), int((rows.places >= 0).sum())))
            if not leave_out:
                fill(draft, rows)

        draft.fill_cache = counting

    def take_filled(self) -> list[tuple[int, int]]:
        """Per pass: its rows, and those of them that were written."""
        return self.filled
