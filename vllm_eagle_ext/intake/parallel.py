# SPDX-License-Identifier: Apache-2.0
"""Which ways to spread an engine over devices our drafts can follow."""

from __future__ import annotations

from typing import Any, Literal

from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.log import get_logger

logger = get_logger(__name__)

_WHY = {
    "v1": "on vLLM's V1 runner: only the last stage has the drafter, the first one fails for want of it "
    "once the weights are loaded, and no stage hands on the states that the draft reads",
    "v2": "on vLLM's V2 runner, which hands on the states that the draft reads for few targets, and "
    "fails, once the weights are loaded, for others and for drafts without embeddings of their own",
}


def check_pipeline(engine_args: Any, runner: Literal["v1", "v2"], *, strict: bool) -> None:
    """Called for each draft of ours. V2 has a chance, which `strict: false` takes.

    Raises:
        SpeculativeConfigError: the target is to be cut into stages.
    """
    stages = engine_args.pipeline_parallel_size
    if stages == 1:
        return
    refusal = SpeculativeConfigError(
        field="pipeline_parallel_size",
        value=stages,
        allowed=f"1 with an eagle3 or dflash draft {_WHY[runner]}",
        remedy="spread the target by --tensor-parallel-size, or serve it without a draft"
        + ('; to try it all the same: {"eagle_ext": {"strict": false}}' if runner == "v2" else ""),
    )
    if strict or runner == "v1":
        raise refusal
    logger.warning("%s", refusal)
