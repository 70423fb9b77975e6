# SPDX-License-Identifier: Apache-2.0
"""The check that every worker makes before it replays, and what follows from it.

It runs while the target is built, before weights are loaded: what refuses does so early, and vLLM asks
for caches, model state and compiled graphs only afterwards, so that a target that stays vLLM's needs
nothing taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from vllm.distributed import get_tp_group
from vllm.distributed.parallel_state import GroupCoordinator
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.platforms import current_platform

from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.log import get_logger
from vllm_eagle_ext.memory.state_scheme import OPTION
from vllm_eagle_ext.replay.on_platform import replay_ops
from vllm_eagle_ext.replay.ops.types import ReplayKernels
from vllm_eagle_ext.replay.self_check.compared import KernelCheck, Kernels, run
from vllm_eagle_ext.replay.self_check.step import Shapes, cpu_kernel, gpu_kernel

logger = get_logger(__name__)

KERNELS_OPTION = "additional_config.eagle_ext.replay_kernels"
FALLEN_BACK = (
    "Self-check of replay FAILED: %s. These kernels gave wrong results here. The %s kernels, which "
    "passed, run instead. %s."
)
LEFT_TO_VLLM = (
    "Self-check of replay FAILED: %s. The kernels gave wrong results here. vLLM's own scheme per_token "
    "runs instead: one state block per draft token, so fewer requests fit. Ignore what the log and "
    "/metrics said of replay before. %s."
)
ASK = "`vllm-eagle selftest --out selftest.json` tests this machine at length; please send the file in"


def shapes_of(layer: QwenGatedDeltaNetAttention) -> Shapes:
    """Read the sizes of one of vLLM's layers, those of this rank."""
    return Shapes(
        H=layer.num_k_heads // layer.tp_size, HV=layer.num_v_heads // layer.tp_size,
        DK=layer.head_k_dim, DV=layer.head_v_dim, T=layer.num_spec + 1, W=layer.conv_kernel_size,
        model=layer.model_config.dtype, state=layer.get_state_dtype()[1],
        A_log=layer.A_log.dtype, dt_bias=layer.dt_bias.dtype, dim_first=is_conv_state_dim_first(),
    )  # fmt: skip


def resolve_kernels(
    layers: Iterable[QwenGatedDeltaNetAttention], option: str, *, must_replay: bool
) -> ReplayKernels | None:
    """Check the kernels for the shapes of these layers, on all ranks of the tensor-parallel group, and
    take the first that are right.

    option: `replay_kernels`.

    Returns:
        The kernels that they may replay with; None where they are to stay vLLM's. All ranks return the
        same.

    Raises:
        HybridStateError: the kernels fail, and replay or these kernels were asked for, or the device is
            lost to all others, too; or those that were asked for cannot run such layers.
    """
    layers = list(layers)
    shapes = list(dict.fromkeys(shapes_of(layer) for layer in layers))
    # A plan's, of a device that may not be here.
    if all(getattr(layer.A_log, "is_meta", False) for layer in layers):
        return candidates(option, shapes)[0].module
    group, device = get_tp_group(), torch.device(current_platform.device_type)
    failed: list[str] = []
    # The first candidate that is right on all ranks.
    for kernels in candidates(option, shapes):
        checks = on_all_ranks(_check(kernels, shapes, device), group)
        wrong = [str(each) for each in checks if not each.ok]
        if not wrong:
            if group.rank_in_group == 0:
                if failed:
                    logger.error(FALLEN_BACK, "; ".join(failed), kernels.name, ASK)
                logger.info("Self-check of replay: %s", "; ".join(map(str, checks)))
            return kernels.module
        failed += wrong
        if any(each.device_lost for each in checks):
            raise _refusal(
                failed,
                "kernels that run on this device. After this error CUDA runs no other kernel in this "
                "process, vLLM's own included",
                f"{OPTION} 'per_token', with which no kernel of replay runs",
            )
    # None is.
    if must_replay or option != "auto":
        raise _refusal(
            failed,
            "kernels that compute on this device what vLLM's own do, where states must be kept by "
            f"replay: with {OPTION} 'replay', replay_kernels or enable_adaptive_verification, and on a "
            "CPU with vLLM 0.32 where K changes (a schedule of K)",
            f"leave out what of these is set: {OPTION} is 'per_token' then",
        )
    if group.rank_in_group == 0:
        logger.error(LEFT_TO_VLLM, "; ".join(failed), ASK)
    return None


def candidates(option: str = "auto", shapes: Sequence[Shapes] = ()) -> Sequence[Kernels]:
    """List the kernels of this platform that may run, the first to be preferred.

    Raises:
        HybridStateError: those that were asked for cannot run layers of these shapes.
    """
    ops = replay_ops()
    per_token = cpu_kernel if current_platform.is_cpu() else gpu_kernel
    reasons = {
        candidate.name: reason
        for candidate in ops.candidates
        for each in shapes
        if (reason := candidate.unsupported_reason(each.DK, each.DV, each.T, each.model, each.state))
    }
    if option in reasons:
        raise HybridStateError(
            field=KERNELS_OPTION,
            value=option,
            allowed=f"'auto' or 'sequential' for this target: {reasons[option]}",
            remedy="leave the option out",
        )
    return [
        Kernels(candidate.name, candidate.kernels, candidate.exact, ops.prepare, per_token)
        for candidate in ops.candidates
        if candidate.name not in reasons and option in ("auto", candidate.name)
    ]


def _check(kernels: Kernels, shapes: Sequence[Shapes], device: torch.device) -> list[KernelCheck]:
    """Check all shapes, up to one that leaves no device to check others on."""
    results: list[KernelCheck] = []
    for each in shapes:
        results.append(run(kernels, each, device))
        if results[-1].device_lost:
            break
    return results


def on_all_ranks(mine: list[KernelCheck], group: GroupCoordinator) -> list[KernelCheck]:
    """Gather the checks of all ranks, by their CPUs, those of a later rank only where it fails."""
    if group.world_size == 1:
        return mine
    gathered: list[list[KernelCheck]] = [[] for _ in range(group.world_size)]
    torch.distributed.all_gather_object(gathered, mine, group=group.cpu_group)
    others = [
        replace(check, kernels=f"rank {rank}: {check.kernels}")
        for rank, checks in enumerate(gathered)
        for check in checks
        if rank and not check.ok
    ]
    return gathered[0] + others


def _refusal(failed: Sequence[str], allowed: str, remedy: str) -> HybridStateError:
    return HybridStateError(
        field="self-check of replay's kernels", value="; ".join(failed), allowed=allowed,
        remedy=f"{remedy}. {ASK}",
    )  # fmt: skip
