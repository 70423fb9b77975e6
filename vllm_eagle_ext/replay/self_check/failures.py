# SPDX-License-Identifier: Apache-2.0
"""Errors of kernels: which kernel raised, and whether the device runs another one after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Of PyTorch and of Triton's launcher; the number of an error is in neither's exception everywhere.
CUDA_ERRORS = ("CUDA error", "Triton Error [CUDA]")


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


def _one_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
