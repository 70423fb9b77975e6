# SPDX-License-Identifier: Apache-2.0
"""How long Triton compiles."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def compile_time() -> Iterator[Callable[[], float]]:
    """Yield what tells the milliseconds for which kernels have been compiled, or read from Triton's
    cache, since then. Whoever else listens goes on doing so. Where no Triton is loaded there are none.
    """
    if "triton" not in sys.modules:
        yield lambda: 0.0
        return
    from triton import knobs  # type: ignore[import-untyped]

    microseconds = 0
    others = knobs.compilation.listener

    def listen(*args: Any, times: Any, **kwargs: Any) -> None:
        nonlocal microseconds
        microseconds += times.total
        if others is not None:
            others(*args, times=times, **kwargs)

    knobs.compilation.listener = listen
    try:
        yield lambda: microseconds / 1e3
    finally:
        knobs.compilation.listener = others
