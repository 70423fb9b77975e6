"""The Triton kernels in an engine on a CPU, under the interpreter, in place of vLLM's C++ kernel.

That kernel reads a state as [DK, DV], the Triton ones, and vLLM's own of a GPU, as [DV, DK]: states are
turned on the way in and out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from vllm_eagle_ext.replay.ops.types import (
    NULL_BLOCK,
    Batch,
    CommitPlan,
    Gating,
    Layer,
    Rows,
    StateCache,
)


def _turned(states: torch.Tensor) -> torch.Tensor:
    """[.., HV, DV, DK] with the bytes of one order, in the other."""
    value_dim, key_dim = states.shape[-2:]
    return states.reshape(*states.shape[:-2], key_dim, value_dim).transpose(-1, -2)


def _back(states: torch.Tensor) -> torch.Tensor:
    return states.transpose(-1, -2).reshape(states.shape)


def _used(*parts: torch.Tensor) -> torch.Tensor:
    blocks = torch.cat([part.flatten() for part in parts]).long()
    return blocks[blocks > NULL_BLOCK].unique()


def _own(cache: StateCache, blocks: torch.Tensor) -> StateCache:
    state = torch.empty(cache.state.shape, dtype=cache.state.dtype)  # of which few pages are touched
    state[blocks] = _turned(cache.state[blocks])
    return cache._replace(state=state)


def turning(kernels: Any) -> Any:
    """A `ReplayKernels` for a CPU's states from one for a GPU's."""

    def verify(rows: Rows, gating: Gating, cache: StateCache, batch: Batch, out: torch.Tensor) -> None:
        kernels.verify(rows, gating, _own(cache, _used(batch.state_blocks)), batch, out)

    class Commit:
        def __init__(self, layers: Sequence[tuple[StateCache, Gating, int]], history: int) -> None:
            self._layers, self._history = [Layer(*layer) for layer in layers], history

        def __call__(self, batch: Batch, plan: CommitPlan) -> None:
            for cache, gating, group in self._layers:
                here, mine = batch.of_group(group), plan.of_group(group)
                targets = _used(mine.final, mine.block_end)
                own = _own(cache, _used(here.state_blocks, targets))
                kernels.Commit([(own, gating, 0)], self._history)(here, mine)
                cache.state[targets] = _back(own.state[targets])

    return SimpleNamespace(verify=verify, plan=kernels.plan, Commit=Commit)


def use(name: str, set_attribute: Callable[[Any, str, Any], None]) -> None:
    """`name`: of the kernels, as in the option `replay_kernels`; `set_attribute`: of a monkeypatch."""
    from vllm_eagle_ext.replay.on_cpu import CpuOps
    from vllm_eagle_ext.replay.on_gpu import GpuOps

    kernels = next(candidate for candidate in GpuOps.candidates if candidate.name == name)
    # The self-check holds them to the C++ kernel's error, not to its bits.
    turned = kernels._replace(kernels=turning(kernels.kernels), exact=False)
    set_attribute(CpuOps, "candidates", (turned,))


def take_masks_of_scalars(set_attribute: Callable[[Any, str, Any], None]) -> None:
    """Let the interpreter load and store under a block's mask that was combined with a scalar's, as
    DFlash2's walk does: it makes a mask of another kind of integer of the two, and refuses it."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def boolean(mask: Any) -> Any:
        return TensorHandle(mask.data.astype(bool), mask.dtype)

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    set_attribute(
        InterpreterBuilder,
        "create_masked_load",
        lambda self, ptrs, mask, *others: load(self, ptrs, boolean(mask), *others),
    )
    set_attribute(
        InterpreterBuilder,
        "create_masked_store",
        lambda self, ptrs, value, mask, *others: store(self, ptrs, value, boolean(mask), *others),
    )


def norm_each_layers_keys(set_attribute: Callable[[Any, str, Any], None]) -> None:
    """Let vLLM's own DFlash2 and DSpark norm the context's keys of each layer by its own weights: on a
    CPU they take the first layer's for all, which the package repairs in classes of its own alone."""
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

    from vllm_eagle_ext.families.dflash.model import DFlashEagleExtQwen3Model

    repaired = DFlashEagleExtQwen3Model._normalize_context_k
    set_attribute(DFlashQwen3Model, "_normalize_context_k", repaired)
