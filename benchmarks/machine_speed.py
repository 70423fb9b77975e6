# SPDX-License-Identifier: Apache-2.0
"""How fast the processor is right now: a fixed piece of work, timed between the steps of an engine.

The cores of a virtual machine change their speed by a tenth and more within seconds, by the work of
their neighbours. A piece that does what a decode step of a tiny model does, products of small matrices
and many small operations of PyTorch, changes as a step does: over a second, steps of the tiny dense
target varied by 13 %, and by 2 % in pieces of work.
"""

from __future__ import annotations

import time

import torch

_ROWS, _WIDTH, _PRODUCTS = 32, 256, 5
_SMALL, _OPERATIONS = 64, 50


class ReferenceWork:
    """`run` does one piece, about 1.5 ms of one core, and times it: `last_s`, CPU seconds."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(0)
        self._rows = torch.randn(_ROWS, _WIDTH, generator=draws)
        self._weights = [torch.randn(_WIDTH, _WIDTH, generator=draws) for _ in range(_PRODUCTS)]
        self._small = [torch.randn(_SMALL, generator=draws) for _ in range(2 * _OPERATIONS)]
        self.last_s = 0.0

    def run(self) -> None:
        began = time.process_time()
        rows = self._rows
        for weight in self._weights:
            rows = torch.tanh(rows @ weight)
        for first, second in zip(self._small[::2], self._small[1::2], strict=True):
            both = torch.cat([(first + second) * first, second])
            torch.softmax(both.view(2, _SMALL).sum(0), 0).to(torch.bfloat16).float()
        self.last_s = time.process_time() - began
