# SPDX-License-Identifier: Apache-2.0
"""Compares replay's kernels with vLLM's own by the modelled times of the GPU at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from vllm_eagle_ext.memory.modelled_times import LIKELY_US

# Within the model's own error: the state blocks decide.
EVEN = 1.1
# As replay takes its kernels, by the option `replay_kernels`.
_TAKEN = {"auto": ("chunked", "sequential"), "chunked": ("chunked",), "sequential": ("sequential",)}


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Holds how long replay takes by the model, over vLLM's own kernel for the same K.

    The range is that of the devices of one compute capability.
    """

    capability: int  # the modelled one: 90 for 9.0
    kernels: str
    least: float
    most: float

    @property
    def pays(self) -> bool:
        return self.most <= EVEN

    @property
    def even(self) -> bool:
        return self.pays and self.most > 2 - EVEN

    def __str__(self) -> str:
        low, high = f"{self.least:.2f}", f"{self.most:.2f}"
        shares = low if low == high else f"{low} to {high}"
        return (
            f"on sm_{self.capability} {self.kernels} verify and commit are modelled at {shares} of the "
            "time of vLLM's own kernel"
        )


def kernel_times(
    capability: tuple[int, int],
    *,
    k: int,
    state_width: int,
    kernels: str = "auto",
    chunked_run: bool = True,
) -> KernelTimes | None:
    """Look up the times of a GPU's kernels; None: nothing is modelled for it.

    Args:
        capability: one that was not modelled is taken for the nearest one below.
        state_width: bytes of an element of a state.
        kernels: the option `replay_kernels`.
        chunked_run: whether the chunked kernels can run the layers (`unsupported_reason`).
    """
    asked = 10 * capability[0] + capability[1]
    known = [modelled for modelled in LIKELY_US if modelled <= asked]
    if not known:
        return None
    modelled = max(known)
    allowed = [name for name in _TAKEN[kernels] if chunked_run or name != "chunked"]
    shares, taken = [], None
    for by_width in LIKELY_US[modelled].values():
        times = by_width.get(state_width, {})
        taken = next((name for name in allowed if name in times), None)
        if taken is None:
            return None
        shares.append(time_at(times[taken], k) / time_at(times["per_token"], k))
    return KernelTimes(modelled, taken, min(shares), max(shares)) if taken else None


def time_at(times: Mapping[int, float], k: int) -> float:
    """Return the time at K: in proportion between modelled K, beyond them as between the nearest two."""
    points = sorted(times.items())
    pairs = list(pairwise(points))
    (k0, t0), (k1, t1) = next(((a, b) for a, b in pairs if k <= b[0]), pairs[-1])
    return t0 + (t1 - t0) * (k - k0) / (k1 - k0)
