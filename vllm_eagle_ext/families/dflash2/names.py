# SPDX-License-Identifier: Apache-2.0
"""vLLM's drafter classes for DFlash2 and DSpark."""

from __future__ import annotations

from vllm_eagle_ext.families.drafter_classes import QWEN3, Drafter

_VLLM = "vllm.model_executor.models"

DFLASH2_DRAFTER = Drafter(
    architecture="DFlash2DraftModel",
    package=f"{_VLLM}.qwen3_dflash2",
    method="dflash",
    backbone=QWEN3,
    published=("DFlash2DraftModel", "Qwen3DFlash2DraftModel"),  # the second by NeMo AutoModel
    speculators=(("dflash2", "qwen3"), ("dflash2", "llama")),
    is_vllms=True,
    vllms_class="DFlash2Qwen3ForCausalLM",
)
DSPARK_DRAFTER = Drafter(
    architecture="Qwen3DSparkModel",
    package=f"{_VLLM}.qwen3_dspark",
    method="dspark",
    backbone=QWEN3,
    published=("Qwen3DSparkModel",),
    speculators=(("dspark", "qwen3"), ("dspark", "llama")),
    published_with_type=(("DSparkDraftModel", "qwen3"),),  # DeepSeek-V4's drafts say so too
    excluded_architectures=("Qwen3OmniDSparkModel",),  # which vLLM checks by itself
    is_vllms=True,
    vllms_class="Qwen3DSparkForCausalLM",
    may_lie_in_the_target=True,
)

DRAFTERS = (DFLASH2_DRAFTER, DSPARK_DRAFTER)
