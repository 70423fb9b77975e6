# SPDX-License-Identifier: Apache-2.0
"""The drafter classes of DFlash, and vLLM's own of DFlash2 and DSpark, which add a second head."""

from __future__ import annotations

from vllm_eagle_ext.families.drafter_classes import QWEN3, Drafter

DFLASH_DRAFTER = Drafter(
    architecture="DFlashEagleExtQwen3ForCausalLM",
    package="vllm_eagle_ext.families.dflash",
    method="dflash",
    backbone=QWEN3,
    published=(
        "DFlashDraftModel",
        "Qwen3DFlashDraftModel",  # NeMo AutoModel
        "QwenDFlashDraftModel",  # AngelSlim
    ),
    speculators=(("dflash", "qwen3"), ("dflash", "llama")),  # which trains layers of Qwen3 for both
)
DFLASH2_DRAFTER = Drafter(
    architecture="DFlash2DraftModel",
    package="vllm.model_executor.models.qwen3_dflash2",
    method="dflash",
    backbone=QWEN3,
    published=("DFlash2DraftModel", "Qwen3DFlash2DraftModel"),  # the second by NeMo AutoModel
    speculators=(("dflash2", "qwen3"), ("dflash2", "llama")),
    uses_vllm_class=True,
    vllms_class="DFlash2Qwen3ForCausalLM",
)
DSPARK_DRAFTER = Drafter(
    architecture="Qwen3DSparkModel",
    package="vllm.model_executor.models.qwen3_dspark",
    method="dspark",
    backbone=QWEN3,
    published=("Qwen3DSparkModel",),
    speculators=(("dspark", "qwen3"), ("dspark", "llama")),
    published_with_type=(("DSparkDraftModel", "qwen3"),),  # DeepSeek-V4's drafts say so too
    excluded_architectures=("Qwen3OmniDSparkModel",),  # which vLLM checks by itself
    uses_vllm_class=True,
    vllms_class="Qwen3DSparkForCausalLM",
    may_lie_in_the_target=True,
)

DRAFTERS = (DFLASH_DRAFTER, DFLASH2_DRAFTER, DSPARK_DRAFTER)
