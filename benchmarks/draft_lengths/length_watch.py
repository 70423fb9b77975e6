# SPDX-License-Identifier: Apache-2.0
"""Notes what the scheduler of `draft_length: "auto"` chooses, or has it hold one K."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vllm_eagle_ext.draft_length.controller import DraftLengthController


class HoldingController(DraftLengthController):
    """Chooses one K always and learns nothing: a perfect controller, where this K is the best one."""

    def __init__(self, menu: Sequence[int], length: int) -> None:
        super().__init__(menu)
        self.in_force = length

    def next_length(self, *_: Any, **__: Any) -> int:
        return self.in_force

    def observe_drafts(self, *_: Any, **__: Any) -> None:
        pass

    def observe_step(self, *_: Any, **__: Any) -> None:
        pass


class LengthWatch:
    """Use as a context manager; `chosen` is then K of the last step, and whether it belongs to a probe.

    A probe's steps are those that draft so many tokens, and the one behind, which verifies the last
    of them.

    Args:
        scheduler: vLLM's, without async scheduling; it is left as it is unless it is one of "auto".
        held: K in place of what the controller would choose; it goes on as it was afterwards.
        clock: by which "auto" times its steps.
    """

    def __init__(self, scheduler: Any, held: int | None, clock: Callable[[], float]) -> None:
        self.scheduler, self.held, self.clock = scheduler, held, clock
        self.controller: DraftLengthController | None = getattr(scheduler, "controller", None)
        self.chosen: tuple[int, bool] | None = None
        self._was_probing = False

    def __enter__(self) -> LengthWatch:
        if self.controller is None:
            return self
        self.scheduler.clock = self.clock
        if self.held is not None:
            self.scheduler.controller = HoldingController(self.controller.menu, self.held)
        else:
            self._choose = self.controller.next_length
            self.controller.next_length = self._noted  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        if self.controller is None:
            return
        del self.scheduler.clock
        if self.held is not None:
            self.scheduler.controller = self.controller
        else:
            del self.controller.next_length

    def _noted(self, *arguments: Any, **more: Any) -> int:
        length = self._choose(*arguments, **more)
        is_probing = self.controller.is_probing
        self.chosen = (length, is_probing or self._was_probing)
        self._was_probing = is_probing
        return length
