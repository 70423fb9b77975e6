# SPDX-License-Identifier: Apache-2.0
"""Figures that the engine core's process writes and the process that answers /metrics reads.

vLLM's statistics carry no values of a plugin's from one to the other. A temporary file of a few numbers,
mapped into both, does, and a write is a store to memory. Its path is inherited in the environment; an
engine core on another node has none, and writes nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any

FIGURES = "EAGLE_EXT_FIGURES"  # environment variable; vLLM warns of unknown ones that begin with VLLM_


class SharedFigures:
    """Holds `count` floating-point numbers, 0 at first; another process sees each as it is set."""

    def __init__(self, file: Any, count: int, *, is_own: bool = False) -> None:
        self._own = file if is_own else None  # gone once it is closed
        self._map = mmap.mmap(file.fileno(), 8 * count)
        self._view = memoryview(self._map).cast("d")

    def __getitem__(self, index: int) -> float:
        return self._view[index]

    def __setitem__(self, index: int, value: float) -> None:
        self._view[index] = value

    def __len__(self) -> int:
        return len(self._view)

    def set(self, values: Sequence[float]) -> None:
        for index, value in enumerate(values):
            self._view[index] = value

    def close(self) -> None:
        self._view.release()
        self._map.close()
        if self._own is not None:
            self._own.close()


def create_figures(count: int) -> SharedFigures:
    """Make the file, which goes with the returned object, and name it to this process's children.

    Raises:
        OSError: no temporary file can be written.
    """
    file = tempfile.NamedTemporaryFile(prefix="vllm-eagle-ext-figures-")  # noqa: SIM115 - kept open
    file.truncate(8 * count)
    os.environ[FIGURES] = file.name
    return SharedFigures(file, count, is_own=True)


def inherited_figures(count: int) -> SharedFigures | None:
    """Open the file that the front end made; None where there is none of this size."""
    with contextlib.suppress(OSError, KeyError, ValueError), open(os.environ[FIGURES], "r+b") as file:
        return SharedFigures(file, count)
    return None
