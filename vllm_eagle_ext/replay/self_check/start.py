# SPDX-License-Identifier: Apache-2.0
"""The check that every worker makes before it replays, and what follows from it.

It runs while the target is built, before weights are loaded: what refuses does so early, and vLLM asks
for caches, model state and compiled graphs only afterwards, so that a target that is left to vLLM needs
nothing taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import torch
from vllm.distributed import get_tp_group
from vllm.distributed.parallel_state import GroupCoordinator
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.platforms import current_platform

from vllm_eagle_ext.errors import HybridStateError
from vllm_eagle_ext.log import get_logger
from vllm_eagle_ext.memory.state_scheme import OPTION
from vllm_eagle_ext.replay.platform_ops import replay_ops
from vllm_eagle_ext.replay.self_check.check import Kernels, run
from vllm_eagle_ext.replay.self_check.per_token import cpu_kernel, gpu_kernel
from vllm_eagle_ext.replay.self_check.result import CheckResult
from vllm_eagle_ext.replay.self_check.step import Shapes

logger = get_logger(__name__)

KERNELS_OPTION = "additional_config.eagle_ext.replay_kernels"
ASK = "`vllm-eagle selftest --json selftest.json` tests this machine at length; please send the file in"


def shapes_of(layer: QwenGatedDeltaNetAttention) -> Shapes:
    """Read the sizes of one of vLLM's layers, those of this rank."""
    return Shapes(
        H=layer.num_k_heads // layer.tp_size,
        HV=layer.num_v_heads // layer.tp_size,
        DK=layer.head_k_dim,
        DV=layer.head_v_dim,
        T=layer.num_spec + 1,
        W=layer.conv_kernel_size,
        model=layer.model_config.dtype,
        state=layer.get_state_dtype()[1],
        A_log=layer.A_log.dtype,
        dt_bias=layer.dt_bias.dtype,
        dim_first=is_conv_state_dim_first(),
    )


def settle(
    layers: Iterable[QwenGatedDeltaNetAttention], *, must_replay: bool, asked: str = "auto"
) -> bool:
    """Check the kernels for the shapes of these layers, on all ranks of the tensor-parallel group, and
    take the first that pass.

    Args:
        asked: "auto", or the name of the kernels that alone are to be taken.

    Returns:
        True where they may replay; False where they are to stay vLLM's. All ranks return the same.

    Raises:
        HybridStateError: the kernels fail, and replay was asked for; or those that were asked for cannot
            run such layers.
    """
    shapes = list(dict.fromkeys(shapes_of(layer) for layer in layers))
    group, device = get_tp_group(), torch.device(current_platform.device_type)
    failed: list[str] = []
    for kernels in candidates(asked, shapes):
        found = on_all_ranks([run(kernels, each, device) for each in shapes], group)
        wrong = [line for line, ok in found if not ok]
        if not wrong:
            if group.rank_in_group == 0:
                _say_taken([line for line, _ in found], failed)
            replay_ops().recurrence = kernels.recurrence
            return True
        failed += wrong
    _refuse_or_say(failed, must_replay=must_replay, speaks=group.rank_in_group == 0)
    return False


def candidates(asked: str = "auto", shapes: Sequence[Shapes] = ()) -> Sequence[Kernels]:
    """List the kernels of this platform that can run such layers, the first to be preferred; `asked`:
    the name of one alone.

    Raises:
        HybridStateError: those that were asked for cannot.
    """
    ops = replay_ops()
    reasons = {
        name: reason
        for name in ops.implementations
        for each in shapes
        if (reason := ops.obstacle(name, (each.DK, each.DV), each.T, (each.model, each.state)))
    }
    if asked in reasons:
        raise HybridStateError(
            field=KERNELS_OPTION,
            value=asked,
            allowed=f"'auto' or 'sequential' for this target: {reasons[asked]}",
            remedy="leave the option out",
        )
    per_token = cpu_kernel if current_platform.is_cpu() else gpu_kernel
    return [
        Kernels(name, recurrence, ops.prepare, per_token)
        for name, recurrence in ops.implementations.items()
        if asked in ("auto", name) and name not in reasons
    ]


def on_all_ranks(results: Sequence[CheckResult], group: GroupCoordinator) -> list[tuple[str, bool]]:
    """Gather the lines and verdicts of all ranks, those of a later rank only where they differ."""
    mine = [(str(result), result.ok) for result in results]
    if group.world_size == 1:
        return mine
    gathered: list[list[tuple[str, bool]]] = [[] for _ in range(group.world_size)]
    torch.distributed.all_gather_object(gathered, mine, group=group.cpu_group)
    others = [
        (f"rank {rank}: {line}", ok)
        for rank, found in enumerate(gathered)
        for line, ok in found
        if rank and not ok
    ]
    return gathered[0] + others


def _say_taken(lines: Sequence[str], failed: Sequence[str]) -> None:
    logger.info("Self-check of replay: %s", "; ".join(lines))
    if failed:
        logger.error("Self-check of replay FAILED for others, which are out: %s. %s.", failed, ASK)


def _refuse_or_say(failed: Sequence[str], *, must_replay: bool, speaks: bool) -> None:
    found = "; ".join(failed)
    if must_replay:
        raise HybridStateError(
            field="self-check of replay's kernels",
            value=found,
            allowed=f"kernels that compute on this device what vLLM's own do, with {OPTION} 'replay'",
            remedy=f"{OPTION} 'auto' or 'per_token'. {ASK}",
        )
    if speaks:
        logger.log(
            logging.ERROR,
            "Self-check of replay FAILED: %s. The recurrent states stay with vLLM's own scheme, "
            "per_token: one state block per draft token, and fewer requests fit. What this start's log "
            "and /metrics said of replay before does not hold. %s.",
            found,
            ASK,
        )
