# SPDX-License-Identifier: Apache-2.0
"""Counts what a device would be given, without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction  # type: ignore[import-untyped]
from vllm.v1.worker.gpu.model_states import mamba_hybrid, recoverssm

FREE = ("empty", "detach", "alias", "view", "expand", "slice", "select", "as_strided", "unbind", "lift")


class Launches(TorchDispatchMode):
    """Counts what would run on the device: meta tensors stand there, all others on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.tally: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        results = result if isinstance(result, tuple | list) else (result,)
        on_device = any(isinstance(t, torch.Tensor) and t.is_meta for t in (*args, *results))
        if on_device and not func.is_view and not any(part in name for part in FREE):
            self.tally[name] += 1
        return result


@contextmanager
def triton_launches(tally: Counter[str]) -> Iterator[None]:
    """Triton kernels are counted and not launched."""

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **kwargs: tally.update([self.name])

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        tally[self.fn.__name__] += 1

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(JITFunction, "run", run))
        # Without a device vLLM's own are no JIT functions.
        for module, name in (
            (recoverssm, "_postprocess_recoverssm_align_kernel"),
            (mamba_hybrid, "_scatter_num_accepted_kernel"),
        ):
            stack.enter_context(mock.patch.object(module, name, Kernel(name)))
        yield


def launched(name: str) -> None:
    """A kernel of vLLM's that needs a device even to be asked for."""
    mode = torch.utils._python_dispatch._get_current_dispatch_mode()
    if isinstance(mode, Launches):
        mode.tally[name] += 1
