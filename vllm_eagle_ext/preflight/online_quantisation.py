# SPDX-License-Identifier: Apache-2.0
"""`"quantization"` in the speculative config: vLLM quantises a plain draft while it loads it."""

from __future__ import annotations

from vllm_eagle_ext.checkpoint import DraftSpec
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.log import get_logger

logger = get_logger(__name__)

FIELD = "speculative_config.quantization"
# vLLM 0.32 has no kernels for these on a CPU.
# REMOVE WHEN `test_vllm_lacks_these_kernels_on_a_cpu` fails.
WITHOUT_CPU_KERNEL = ("fp8", "fp8_per_tensor", "mxfp4", "mxfp8")
# vLLM's CPU kernel for it multiplies on AMX tiles.
_WITH_TILES = "fp8_per_block"
# A scheme by layers, whose arguments vLLM does not take here.
_WITH_ARGUMENTS = "online"
_EXPERTS_ALONE = ("int8_per_channel_weight_only", "nvfp4_per_token")


def check_online_quantisation(asked: object, spec: DraftSpec, *, on_cpu: bool) -> None:
    """Refuse what fails once the target is loaded, and warn of what does nothing.

    Args:
        asked: the key's value; None: the draft is served as it is.

    Raises:
        SpeculativeConfigError: the platform cannot quantise so.
    """
    if spec.quantisation is not None or not isinstance(asked, str):
        return  # of a quantised draft vLLM compares it with the files' own
    if asked == _WITH_ARGUMENTS:
        raise SpeculativeConfigError(
            field=FIELD,
            value=asked,
            allowed="the name of one scheme, as 'fp8_per_channel': vLLM takes no arguments of a draft's",
            remedy="name a scheme, or leave it out",
        )
    lacks_tiles = asked == _WITH_TILES and not _has_tiles()
    if on_cpu and (asked in WITHOUT_CPU_KERNEL or lacks_tiles):
        raise SpeculativeConfigError(
            field=FIELD,
            value=asked,
            allowed="'fp8_per_channel' on a CPU, 'fp8_per_block' on one with AMX: vLLM has no kernels "
            "for the others there",
            remedy="leave it out, or use a draft that was quantised beforehand "
            "(docs/quantised_drafts.md)",
        )
    if asked in _EXPERTS_ALONE:
        logger.warning(
            "%s is %r, which quantises only experts: this draft has none and is served with plain "
            "weights. 'fp8_per_channel' quantises its layers.",
            FIELD,
            asked,
        )


def _has_tiles() -> bool:
    """Say whether there are tiles, as vLLM's kernel asks."""
    import torch

    return torch.cpu._is_amx_tile_supported()
