# SPDX-License-Identifier: Apache-2.0
"""Which ways to spread an engine over devices our drafts can follow."""

from __future__ import annotations

from typing import Any, Literal

from vllm_eagle_ext.checkpoint import DraftSpec
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.log import get_logger

logger = get_logger(__name__)

_WHY = {
    "v1": "on vLLM's V1 runner: only the last stage has the drafter, the first one fails for want of it "
    "once the weights are loaded, and no stage hands on the states that the draft reads",
    "v2": "that has no embeddings of its own: on vLLM's V2 runner the last stage, which drafts, has "
    "none to lend, and fails once the weights are loaded",
}


def check_pipeline(engine_args: Any, spec: DraftSpec, runner: Literal["v1", "v2"]) -> None:
    """Called for each draft of ours. What V2 needs of the target, its layers alone tell.

    Raises:
        SpeculativeConfigError: the target is to be cut into stages, and the runner would fail.
    """
    stages = engine_args.pipeline_parallel_size
    if stages == 1:
        return
    if runner == "v2" and spec.embeddings == "own":
        logger.warning(
            "pipeline_parallel_size is %s: vLLM's V2 runner drafts for targets whose layers hand on the "
            "states that a draft reads, and raises for others. Not run with this package.",
            stages,
        )
        return
    raise SpeculativeConfigError(
        field="pipeline_parallel_size",
        value=stages,
        allowed=f"1 with an eagle3 or dflash draft {_WHY[runner]}",
        remedy="spread the target by --tensor-parallel-size, or serve it without a draft",
    )
