# SPDX-License-Identifier: Apache-2.0
"""Foresees the engine of `check` and `plan` from files and from what was asked, without vLLM."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.version import Version

from vllm_eagle_ext.checkpoint import DraftSpec
from vllm_eagle_ext.checkpoint.draft_config import published_architecture
from vllm_eagle_ext.checkpoint.rules.request import MOST_K, wanted_runner
from vllm_eagle_ext.checkpoint.target_facts import text_config
from vllm_eagle_ext.cpu_kernels import ForeseenKernels
from vllm_eagle_ext.engine import (
    ASSUMED_GPU,
    NEWEST_RELEASE,
    OLDEST_RELEASE,
    EngineFacts,
    Runner,
    adapts_head,
)
from vllm_eagle_ext.engine_rules.draft_vocabulary import quantises_head
from vllm_eagle_ext.engine_rules.without_hidden_states import lacks_hidden_states
from vllm_eagle_ext.errors import OptionsError, SpeculativeConfigError
from vllm_eagle_ext.memory.connectors import read_connector
from vllm_eagle_ext.memory.geometry import served_dtype
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
from vllm_eagle_ext.memory.state_scheme import planned_prefix_caching
from vllm_eagle_ext.model_runner import has_microbatches, only_v1_has, only_v2_has
from vllm_eagle_ext.options import Options
from vllm_eagle_ext.preflight.described import DEVICES
from vllm_eagle_ext.releases import how_tested
from vllm_eagle_ext.version import installed_vllm

PLATFORMS = ("auto", "cpu", "cuda", *(f"cuda:{name}" for name in DEVICES))
_BUILDS = ("cpu", "rocm", "xpu", "tpu")  # in the local part of a version; CUDA's has a number or none
_CONTEXT_PARALLEL = ("decode_context_parallel_size", "prefill_context_parallel_size")
# vLLM may switch its manager of mixed caches off for a connector.
_ONE_CACHE = ("disable_hybrid_kv_cache_manager", "kv_transfer_config", "kv_offloading_size")
_CONNECTOR = ("kv_transfer_config", "kv_offloading_size", "kv_offloading_backend")


def foresee_engine(
    target: Mapping[str, Any],
    *,
    platform: str, options: Options | None = None, k: int | None = None, method: str | None = None,
    speculative: Mapping[str, Any] | None = None, keywords: Mapping[str, Any] | None = None,
    release: str | None = None, **known: Any,
) -> EngineFacts:  # fmt: skip
    """Foresee an engine before its draft is known.

    Args:
        target: the target's config.json.
        platform: one of PLATFORMS.
        speculative: further keys of the speculative config, spelt as vLLM does.
        keywords: of LLM().
        release: of the vLLM that will serve; None: the one that is here, else the newest.
        known: fields of EngineFacts that the caller knows better.

    Raises:
        SpeculativeConfigError: another platform.
    """
    name, why = find_platform(platform)
    if release is not None:
        why = f"{why}; for vLLM {release} ({how_tested(release)})"
    serving = release or _installed_release()
    if name == "cuda" and "capability" not in known:
        described = DEVICES.get(platform.partition(":")[2])
        known["capability"] = described.capability if described else _driver_capability() or ASSUMED_GPU
    asked, given = dict(keywords or {}), dict(speculative or {})
    read = _of_keywords(asked)
    found = EngineFacts(
        release=serving,
        release_is_known=bool(release) or (platform == "auto" and installed_vllm() is not None),
        platform=name, platform_why=why,
        has_triton=name != "cpu",
        cpu_kernels=find_cpu_kernels(name, serving),
        runner=_only_runner(name, asked),
        **_of_target(target, name, asked, serving),
        **read,
        options=options or Options(),
        load_format=_load_format(asked, given),
        speculative=given, method=method, k=k,
        adaptive_verification=given.get("enable_adaptive_verification") is True,
    )  # fmt: skip
    return replace(found, **known)


def _of_target(
    target: Mapping[str, Any], platform: str, keywords: Mapping[str, Any], release: str
) -> dict[str, Any]:
    """Return the fields that follow from the target's config.json."""
    architecture, asked = published_architecture(target), keywords.get("dtype", "auto")
    is_hybrid = architecture in REPLAYING_TARGETS
    dtype = served_dtype(target) if asked == "auto" else str(asked)
    caches = planned_prefix_caching(architecture, platform, keywords.get("enable_prefix_caching"))
    return {
        "architecture": architecture,
        "text": text_config(target),
        "dtype": dtype,
        "is_hybrid": is_hybrid,
        "prefix_caching": caches is not False,
        "target_head_is_quantised": quantises_head(target),
        "hands_out_states": keywords.get("model_impl") == "transformers"
        or not lacks_hidden_states(architecture, release, text_config(target).get("architectures")),
        **_images(target, architecture, keywords),
    }


def _only_runner(platform: str, keywords: Mapping[str, Any]) -> Runner | None:
    """Return the one runner that such an engine can have; None: the draft decides."""
    given = dict(keywords)
    if platform != "cpu" and only_v2_has(given):
        return "v2"
    return "v1" if platform == "cpu" or only_v1_has(given) else None  # V2 needs Triton


def _of_keywords(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that follow from keywords of LLM()."""
    return {
        "gdn_prefill": str(keywords.get("gdn_prefill_backend") or "auto").strip().lower(),
        "max_model_len": keywords.get("max_model_len"),
        "tensor_parallel_size": _ranks(keywords, "tensor_parallel_size"),
        "pipeline_parallel_size": _ranks(keywords, "pipeline_parallel_size"),
        "context_parallel_size": max(_ranks(keywords, key) for key in _CONTEXT_PARALLEL),
        "mixes_caches": not any(keywords.get(key) for key in _ONE_CACHE),
        "kv_connector": read_connector(*map(keywords.get, _CONNECTOR)),
        "prompt_embeds": keywords.get("enable_prompt_embeds") is True,
        "lora": keywords.get("enable_lora") is True,
        "lora_on_head": adapts_head(keywords.get("enable_lora"), keywords.get("lora_target_modules")),
        "microbatches": has_microbatches(dict(keywords)),
        "scheduler": keywords.get("scheduler_cls"),
        "weight_transfer": _transfer_backend(keywords.get("weight_transfer_config")),
    }


def with_draft(engine: EngineFacts, spec: DraftSpec | None, keywords: Mapping[str, Any]) -> EngineFacts:
    """Add what the command decides for a draft: runner, K, and what vLLM makes of them."""
    wanted = wanted_runner(spec, v2_needs_aux_states=engine.v2_needs_aux_states) if spec else None
    runner = engine.runner or (wanted[0] if wanted else "v2")
    # With data parallelism vLLM follows no schedule.
    follows = _ranks(keywords, "data_parallel_size") <= 1
    is_asked = engine.speculative.get("parallel_drafting") is True
    return replace(
        engine,
        runner=runner,
        method=spec.family.method if spec else engine.method,
        k=engine.k or usual_k(spec),
        schedule=engine.speculative.get("num_speculative_tokens_per_batch_size") if follows else None,
        parallel_drafting=is_asked or bool(spec and spec.family.drafts_in_parallel),
    )


def usual_k(spec: DraftSpec | None) -> int:
    """Return the K that a draft was trained for, or 3."""
    if spec is None:
        return 3
    most = spec.most_drafted
    # A file that states more than any training unrolls is not followed.
    stated = spec.trained_k if (spec.trained_k or 0) <= MOST_K else None
    usual = stated or most or 3
    return min(usual, most) if most else usual


def _ranks(keywords: Mapping[str, Any], key: str) -> int:
    """Read a number of ranks; one that is no number is passed through to vLLM."""
    given = keywords.get(key)
    return given if isinstance(given, int) else 1


def _transfer_backend(asked: object) -> str | None:
    """Return the backend that brings weights; vLLM's default where a config names none."""
    return str(asked.get("backend", "nccl")) if isinstance(asked, Mapping) else None


def _load_format(keywords: Mapping[str, Any], speculative: Mapping[str, Any]) -> object:
    load = speculative.get("draft_load_config")
    asked = load if isinstance(load, Mapping) and load else keywords
    return asked.get("load_format", "auto")


def _images(target: Mapping[str, Any], architecture: str, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Guess the class that serves a target with images, and whether its config names their token.

    vLLM's class, whose name decides, may serve several architectures, and only vLLM knows which.
    """
    sees = any(isinstance(target.get(f"{sense}_config"), Mapping) for sense in ("vision", "audio"))
    overrides = keywords.get("hf_overrides")
    stated = {**target, **(overrides if isinstance(overrides, Mapping) else {})}
    names_it = not sees or "image_token_index" in stated
    served_by, token = None if names_it else architecture, stated.get("image_token_id")
    return {"image_class": served_by, "image_token_id": token}


def find_platform(asked: str) -> tuple[str, str]:
    """Find the platform that a check is for, and why it is assumed.

    Args:
        asked: one of PLATFORMS.

    Raises:
        SpeculativeConfigError: another word.
    """
    if asked not in PLATFORMS:
        raise SpeculativeConfigError(
            field="--platform", value=asked, allowed=", ".join(PLATFORMS),
            remedy="leave it out for the platform of the vLLM that is installed",
        )  # fmt: skip
    return _installed() if asked == "auto" else (asked.partition(":")[0], "as --platform says")


def _installed() -> tuple[str, str]:
    found = installed_vllm()
    if found is None:
        has_gpu = shutil.which("nvidia-smi") or os.path.exists("/proc/driver/nvidia/version")
        why = "and there is an NVIDIA GPU" if has_gpu else "a GPU is assumed"
        return "cuda", f"no vLLM is installed here, {why}"
    build = next((build for build in _BUILDS if build in found.partition("+")[2]), "cuda")
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu" or sys.platform == "darwin":
        build = "cpu"
    return build, f"vLLM {found} is installed here ({how_tested(found)})"


def read_release(asked: str) -> str:
    """Return a release that is given by --vllm.

    Raises:
        OptionsError: it is none, or older than those that are known.
    """
    try:
        release = Version(asked)
        is_known = release >= Version(OLDEST_RELEASE)
    except ValueError:  # InvalidVersion is one, and what Python says of thousands of digits
        is_known = False
    if not is_known:
        raise OptionsError(
            field="--vllm", value=asked, allowed=f"a release from {OLDEST_RELEASE} on, such as "
            f"{NEWEST_RELEASE}", remedy="leave it out for the release that is installed",
        )  # fmt: skip
    return release.public


def _installed_release() -> str:
    """Return the release that is here, else the newest."""
    return (installed_vllm() or NEWEST_RELEASE).partition("+")[0]


def find_cpu_kernels(platform: str | None = None, release: str | None = None) -> ForeseenKernels | None:
    """Foresee what vLLM's kernels for this machine's CPU can compute; None: it would run elsewhere.

    Args:
        platform: None: of the vLLM that is installed.
        release: of vLLM; None: the one that is here, else the newest.
    """
    name = platform or _installed()[0]
    return ForeseenKernels(release or _installed_release()) if name == "cpu" else None


def _driver_capability() -> tuple[int, int] | None:
    """Ask the driver for the first GPU's compute capability."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        asked = [command, "--query-gpu=compute_cap", "--format=csv,noheader"]
        printed = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"(\d+)\.(\d)\s", printed)
    return (int(found[1]), int(found[2])) if found else None
