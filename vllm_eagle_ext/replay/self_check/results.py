# SPDX-License-Identifier: Apache-2.0
"""What a self-check found: values that differ, or the kernel that raised and whether the device runs
another one after it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

# Of PyTorch and of Triton's launcher; the number of an error is in neither's exception everywhere.
CUDA_ERRORS = ("CUDA error", "Triton Error [CUDA]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Compares one part of a step with what was expected.

    limit: of `error`, for kernels that may round otherwise than vLLM's; None: not one bit may differ.
    """

    name: str
    values: int
    differing: int
    max_abs: float
    max_rel: float  # of the largest expected magnitude
    first: str | None  # where the first difference is, and what stands there
    error: float = 0.0  # relative to fp64, root mean square
    limit: float | None = None

    @property
    def ok(self) -> bool:
        return self.differing == 0 if self.limit is None else self.error <= self.limit  # not of a NaN

    def __str__(self) -> str:
        if self.limit is not None:
            return f"{self.name}: error {self.error:.3g} of fp64, allowed {self.limit:.3g}"
        if self.ok:
            return f"{self.name}: equal in all bits"
        return (
            f"{self.name}: {self.differing} of {self.values} values differ, by up to {self.max_abs:.3g} "
            f"({self.max_rel:.3g} of the largest), first {self.first}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCheck:
    """Says whether kernels do on this device what vLLM's own do."""

    kernels: str  # "sequential", "chunked"
    shapes: str
    parts: tuple[Part, ...] = ()
    milliseconds: float = 0.0
    error: str | None = None  # of a kernel that raised
    device_lost: bool = False  # after that error nothing runs any more in this process

    @property
    def ok(self) -> bool:
        return self.error is None and bool(self.parts) and all(part.ok for part in self.parts)

    def __str__(self) -> str:
        """Write one line."""
        return f"{self.kernels} kernels, {self.shapes}: {self._found()}"

    def _found(self) -> str:
        if self.error is not None:
            return f"failed with {self.error}"
        wrong = [str(part) for part in self.parts if not part.ok]
        if wrong:
            return "; ".join(wrong)
        bounded = [str(part) for part in self.parts if part.limit is not None]
        equal = "all bits as vLLM's own" if not bounded else "; ".join(bounded)
        return f"{equal} ({self.milliseconds:.0f} ms)"


class KernelError(Exception):
    """Names the kernel whose call raised its cause."""


@contextmanager
def calling(kernel: str, device: torch.device) -> Iterator[None]:
    """Name the kernel in what it raises. A GPU lags the host: its errors are waited for.

    Raises:
        KernelError: from the exception of the call.
    """
    try:
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:
        raise KernelError(kernel) from error


def error_line(error: Exception) -> str:
    """Say in one line what was raised, and by which kernel if that is known."""
    cause = error.__cause__ if isinstance(error, KernelError) else None
    if cause is not None:
        return f"{_one_line(cause)}, in {error}"
    return _one_line(error)


def is_device_lost(error: Exception, device: torch.device) -> bool:
    """Find out whether each further call of this process fails, as after an illegal memory access.

    CUDA answers with the first error until the process ends. Others, such as memory that is short or a
    launch that it does not take, leave the device as it was.
    """
    cause = error.__cause__ if isinstance(error, KernelError) else error
    says_so = any(kind in str(cause) for kind in CUDA_ERRORS)
    is_cuda = says_so or isinstance(cause, torch.AcceleratorError)
    if not is_cuda or device.type != "cuda":
        return is_cuda
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def compare_bits(name: str, mine: torch.Tensor, expected: torch.Tensor) -> Part:
    """Compare bit for bit; both of one shape and dtype."""
    differs = _bits(mine) != _bits(expected)
    count = int(differs.sum())
    if not count:
        return Part(name=name, values=mine.numel(), differing=0, max_abs=0.0, max_rel=0.0, first=None)
    max_abs, max_rel = _largest(mine, expected)
    at = tuple(int(i) for i in torch.unravel_index(differs.flatten().int().argmax(), mine.shape))
    first = f"at {list(at)}: {mine[at].item():.6g} for {expected[at].item():.6g}"
    return Part(
        name=name, values=mine.numel(), differing=count, max_abs=max_abs, max_rel=max_rel, first=first
    )


def compare_error(name: str, mine: torch.Tensor, exact: torch.Tensor, limit: float) -> Part:
    """Compare with fp64 values."""
    max_abs, max_rel = _largest(mine, exact)
    return Part(
        name=name,
        values=mine.numel(),
        differing=int((mine.double() != exact).sum()),
        max_abs=max_abs,
        max_rel=max_rel,
        first=None,
        error=relative_error(mine, exact),
        limit=limit,
    )


def relative_error(mine: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the root mean square of the differences, relative to that of the fp64 values."""
    return float((mine.double() - exact).norm() / exact.norm().clamp_min(1e-300))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])


def _largest(mine: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Return the largest difference, itself and relative to the largest expected magnitude; inf of a
    NaN."""
    expected = expected.double()
    largest = float((mine.double() - expected).abs().max())
    if math.isnan(largest):
        return math.inf, math.inf
    return largest, largest / max(float(expected.abs().max()), 1e-300)


def _one_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
