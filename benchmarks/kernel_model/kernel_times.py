# SPDX-License-Identifier: Apache-2.0
"""Compares replay's kernels with vLLM's own by the modelled times of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from benchmarks.kernel_model.modelled_times import LIKELY_US

_TAKEN = ("chunked", "sequential")  # as replay takes its kernels


def shares_of_vllms(capability: int, *, k: int, state_width: int) -> tuple[float, float] | None:
    """Replay's time over that of vLLM's own kernel: the least and the most of a capability's devices.

    Args:
        capability: 90 for 9.0.
        state_width: bytes of an element of a state.
    """
    shares = []
    for by_width in LIKELY_US[capability].values():
        times = by_width.get(state_width, {})
        taken = next((name for name in _TAKEN if name in times), None)
        if taken is None:
            return None
        shares.append(time_at(times[taken], k) / time_at(times["per_token"], k))
    return min(shares), max(shares)


def time_at(times: Mapping[int, float], k: int) -> float:
    """Return the time at K: in proportion between modelled K, beyond them as between the nearest two."""
    points = sorted(times.items())
    pairs = list(pairwise(points))
    (k0, t0), (k1, t1) = next(((a, b) for a, b in pairs if k <= b[0]), pairs[-1])
    return t0 + (t1 - t0) * (k - k0) / (k1 - k0)
