# SPDX-License-Identifier: Apache-2.0
"""Rules about the draft's weights: what an engine has kernels for, and how it loads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm_eagle_ext import compat
from vllm_eagle_ext.draft import Case
from vllm_eagle_ext.draft.findings import Problem, Problems, Severity, rule
from vllm_eagle_ext.draft.quantisation import quantised_weights
from vllm_eagle_ext.draft.stock_gaps import stock_gaps
from vllm_eagle_ext.errors import SpeculativeConfigError, UnsupportedVllmError
from vllm_eagle_ext.memory.device import loaded_kernels
from vllm_eagle_ext.start.rules.vllm_config import device_of, dtype_of
from vllm_eagle_ext.version import TESTED_VLLM, is_tested

BF16_FALLBACK = (
    "This CPU has no AVX-512, so that vLLM multiplies bfloat16 by a fallback. The fallback takes K + 1 "
    "times as long for the K + 1 rows of a verified draft: a draft hardly pays. A dense target is "
    "faster with --dtype float32"
)
QUANTIZATION, WEIGHTS_FIELD = "speculative_config.quantization", "quantisation of the draft's weights"
# vLLM 0.32 has no kernels for these on a CPU.
# REMOVE WHEN `test_vllm_lacks_these_kernels_on_a_cpu` fails.
WITHOUT_CPU_KERNEL = ("fp8", "fp8_per_tensor", "mxfp4", "mxfp8")
# vLLM's CPU kernel for it multiplies on AMX tiles.
_WITH_TILES = "fp8_per_block"
# A scheme by layers, whose arguments vLLM does not take here.
_WITH_ARGUMENTS = "online"
_EXPERTS_ONLY = ("int8_per_channel_weight_only", "nvfp4_per_token")


@rule(Severity.ERROR, error=SpeculativeConfigError)
def draft_can_be_quantised(case: Case, config: Any) -> Problems:
    """vLLM has kernels for `quantization` of a plain draft."""
    scheme, kernels = config.speculative_config.quantization, loaded_kernels()
    if case.spec.quantisation is not None or not isinstance(scheme, str):
        return
    if scheme == _WITH_ARGUMENTS:
        yield Problem(
            field=QUANTIZATION,
            value=scheme,
            allowed="the name of one scheme, as 'fp8_per_channel': vLLM takes no arguments of a draft's",
            remedy="name a scheme, or leave it out",
        )
    lacks_tiles = scheme == _WITH_TILES and kernels is not None and not kernels.tiles
    if device_of(config).on_cpu and (scheme in WITHOUT_CPU_KERNEL or lacks_tiles):
        yield Problem(
            field=QUANTIZATION,
            value=scheme,
            allowed="'fp8_per_channel' on a CPU, 'fp8_per_block' on one with AMX: vLLM has no kernels "
            "for the others there",
            remedy="leave it out, or use a draft that was quantised beforehand "
            "(docs/quantised_drafts.md)",
        )


@rule(Severity.WARNING)
def quantisation_has_layers(case: Case, config: Any) -> Problems:
    """`quantization` has layers of the draft to quantise."""
    scheme = config.speculative_config.quantization
    if case.spec.quantisation is None and scheme in _EXPERTS_ONLY:
        yield Problem(
            field=QUANTIZATION,
            value=scheme,
            message="It quantises only experts: this draft has none and is served with plain weights. "
            "'fp8_per_channel' quantises its layers",
        )


@rule(Severity.ERROR, error=SpeculativeConfigError)
def cpu_has_the_kernels(case: Case, config: Any) -> Problems:
    """The CPU multiplies quantised weights correctly."""
    for value, why in _missing(case):
        yield Problem(
            field=WEIGHTS_FIELD,
            value=value,
            allowed=f"plain weights or eight-bit floats on this CPU: {why}",
            remedy="use a draft with plain weights, or serve this one on a GPU or on a CPU with AVX-512 "
            "and VNNI",
        )


def _missing(case: Case) -> Iterator[tuple[str, str]]:
    kernels, tensors = loaded_kernels(), case.files.tensors
    if kernels is None:
        return
    dtypes = {tensors[module + suffix].dtype for module, suffix in quantised_weights(tensors).items()}
    if "I32" in dtypes and not kernels.packed_weights:
        yield "weights packed into integers", "vLLM's library for it has no kernel for packed ones"
    if "I8" in dtypes and not kernels.exact_int8:
        why = "it lacks VNNI instructions, without which oneDNN cuts sums off at 16 bits, silently"
        yield "eight-bit integers", why


@rule(Severity.WARNING)
def dtype_has_a_kernel(case: Case, config: Any) -> Problems:
    """The CPU has a kernel for the dtype (bfloat16: AVX-512)."""
    dtype, kernels = dtype_of(config), loaded_kernels()
    if dtype == "bfloat16" and kernels is not None and not kernels.bf16:
        yield Problem(field="dtype", value=dtype, message=BF16_FALLBACK)


@rule(Severity.ERROR, error=SpeculativeConfigError)
def later_weights_stay_the_drafts(case: Case, config: Any) -> Problems:
    """vLLM's own classes load the draft's embeddings and head at the start.

    Else they share the target's modules, into which an update would bring the draft's.
    """
    from vllm.model_executor.model_loader.utils import get_draft_load_config

    own = [n for n in case.files.tensors if n.startswith(("embed_tokens.", "lm_head."))]
    load_format = get_draft_load_config(config).load_format
    if load_format == "dummy" and own and case.spec.drafter.uses_vllm_class:
        yield Problem(
            field="load_format of the draft",
            value=load_format,
            allowed=f"a format that loads the draft's files, because {', '.join(own)} would take the "
            "target's place later",
            remedy='set "draft_load_config": {"load_format": "auto"} in speculative_config',
        )


@rule(Severity.ERROR, error=UnsupportedVllmError)
def vllm_is_tested(case: Case) -> Problems:
    """vLLM is tested, or serves the draft without this package."""
    release = compat.vllm_version()
    if is_tested(release) or case.request.options.untested_vllm:
        return
    if gaps := stock_gaps(case):
        yield Problem(
            field="vLLM version",
            value=release,
            allowed=f"{TESTED_VLLM} for the draft {case.spec.model!r}, which plain vLLM would serve "
            "wrongly: " + "; ".join(gaps),
            remedy='install a tested vLLM, or go on with {"eagle_ext": {"untested_vllm": true}}, or '
            'accept stock behaviour with {"eagle_ext": {"enabled": false}}',
        )
