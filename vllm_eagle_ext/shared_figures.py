# SPDX-License-Identifier: Apache-2.0
"""Figures that the engine core's process writes and the process that answers /metrics reads.

vLLM's statistics carry no values of a plugin's from one to the other. A few numbers in anonymous memory,
mapped into both, do, and a write is a store. Linux frees them with the last process that maps them,
however it ends. A child opens them by the front end's descriptor, which the environment names; an engine
core on another node has none, and writes nothing.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Sequence

FIGURES = "EAGLE_EXT_FIGURES"  # environment variable; vLLM warns of unknown ones that begin with VLLM_
_NAME = "vllm-eagle-ext-figures"


class SharedFigures:
    """Holds `count` floating-point numbers; another process sees each as it is set."""

    def __init__(self, descriptor: int, count: int, *, path: str | None = None) -> None:
        """
        Args:
            path: by which children find them; the descriptor is then closed with this object.
        """
        self._map = mmap.mmap(descriptor, 8 * count)
        self._view = memoryview(self._map).cast("d")
        self._descriptor = None if path is None else descriptor
        self._path = path

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
        """Unmap them, and no longer name them to children."""
        self._view.release()
        self._map.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            if os.environ.get(FIGURES) == self._path:
                del os.environ[FIGURES]


def create_figures(count: int) -> SharedFigures:
    """Make them, NaN until they are written, and name them to this process's children.

    Raises:
        OSError: not on Linux, or no memory.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError("figures are shared between processes on Linux alone")
    descriptor = os.memfd_create(_NAME)
    os.ftruncate(descriptor, 8 * count)
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    figures = SharedFigures(descriptor, count, path=path)
    figures.set([math.nan] * count)
    os.environ[FIGURES] = path
    return figures


def inherited_figures(count: int) -> SharedFigures | None:
    """Open those that the front end made; None where there are none of this number."""
    with contextlib.suppress(OSError, KeyError):
        path = os.environ[FIGURES]
        if not os.readlink(path).startswith(f"/memfd:{_NAME} "):
            return None  # another process has the number of one that ended
        descriptor = os.open(path, os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size == 8 * count:
                return SharedFigures(descriptor, count)
        finally:
            os.close(descriptor)
    return None
