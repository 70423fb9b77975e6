# SPDX-License-Identifier: Apache-2.0
"""Why a draft is, or is not, served by this package: the answer to "not loading?"."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec

from vllm_eagle_ext.compat import RUN_VLLM, TESTED_VLLM, is_tested, vllm_version, was_run
from vllm_eagle_ext.preflight.cpu_kernels import BF16_FALLBACK
from vllm_eagle_ext.preflight.offline.platform import find_cpu_kernels, find_platform
from vllm_eagle_ext.version import __version__

GROUP, NAME = "vllm.general_plugins", "eagle_ext"


@dataclass(frozen=True, slots=True)
class StatusLine:
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class StatusReport:
    lines: tuple[StatusLine, ...]

    @property
    def ok(self) -> bool:
        return all(line.ok for line in self.lines)


def read_status() -> StatusReport:
    lines = [StatusLine(True, f"vllm-eagle-ext {__version__}"), _vllm(), _entry_point(), _allowed()]
    if lines[1].ok:
        lines += [*_cpu(), *_registered()]
    return StatusReport(tuple(lines))


def _vllm() -> StatusLine:
    if find_spec("vllm") is None:
        return StatusLine(False, "vLLM is not installed: pip install 'vllm-eagle-ext[cpu]' or [cuda]")
    version = vllm_version()
    if was_run(version):
        return StatusLine(True, f"vLLM {version}, a release that the tests were run with ({RUN_VLLM})")
    if is_tested(version):
        how = f"whose Python files were run, on a CPU with compiled parts of {RUN_VLLM}"
        return StatusLine(True, f"vLLM {version}, a release {how}")
    return StatusLine(
        False,
        f"vLLM {version}, outside the tested range {TESTED_VLLM} (run as published: {RUN_VLLM})",
    )


def _entry_point() -> StatusLine:
    found = [e for e in entry_points(group=GROUP) if e.name == NAME]
    if found:
        return StatusLine(True, f"entry point {GROUP}: {NAME} = {found[0].value}")
    return StatusLine(False, f"no entry point {NAME} in {GROUP}: install the package with pip")


def _allowed() -> StatusLine:
    """VLLM_PLUGINS is a list of names; "all" is not one of them."""
    names = os.environ.get("VLLM_PLUGINS")
    if names is None or NAME in names.split(","):
        return StatusLine(True, f"VLLM_PLUGINS lets {NAME} load")
    return StatusLine(False, f"VLLM_PLUGINS={names!r} keeps {NAME} out: unset it or add the name")


def _cpu() -> Iterator[StatusLine]:
    """Say what this CPU lacks, where vLLM runs on it."""
    kernels = find_cpu_kernels(find_platform("auto"))
    if kernels is None:
        return
    if not kernels.bf16:
        yield StatusLine(True, BF16_FALLBACK)
    lacking = {
        "packed into integers (AWQ, GPTQ, W4A16)": kernels.packed_weights,
        "of eight-bit integers (W8A8)": kernels.exact_int8,
    }
    if refused := " or ".join(name for name, is_there in lacking.items() if not is_there):
        yield StatusLine(
            True, f"this CPU has no kernel of vLLM's for weights {refused}: such drafts are refused"
        )


def _registered() -> list[StatusLine]:
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.plugins import load_general_plugins

    from vllm_eagle_ext.plugin import registered_drafters

    load_general_plugins()
    known = ModelRegistry.get_supported_archs()
    return [StatusLine(name in known, f"drafter {name} is registered") for name in registered_drafters()]
