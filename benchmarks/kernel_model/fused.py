# SPDX-License-Identifier: Apache-2.0
"""vLLM's fused decode kernel for K <= 7, whose machine code is in the CUDA wheel of a release.

Given the wheel or its `_C_stable_libtorch.abi3.so`, the code is read from there. Without it the profiles
of the last run that had it are kept.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.kernel_model.case import STATES, Case
from benchmarks.kernel_model.compiling import Machine, tool
from benchmarks.kernel_model.facts import FUSED

LIBRARY = "vllm/_C_stable_libtorch.abi3.so"
MOST_ROWS = 8  # vLLM's MAX_FUSED_GDN_MTP_TOKENS
_WARPS = 8  # its launch bound of 256 threads
_TYPES = {"fp32": "f", "bf16": "13__nv_bfloat16"}
# Mangled: the state's type, value heads per key head, sigmoid in place of SiLU at the gate.
_SYMBOL = re.compile(rf"Function (\w*{FUSED}I(f|13__nv_bfloat16)Li(\d+)ELb0E\w*):\s+(REG:.*)")


@contextmanager
def library(path: Path) -> Iterator[Path]:
    """The compiled library itself, taken out of the wheel where one is given."""
    if path.suffix != ".whl":
        yield path
        return
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as wheel:
        yield Path(wheel.extract(LIBRARY, folder))


class FusedKernels:
    """The kernels in a library, by capability."""

    def __init__(self, file: Path) -> None:
        self._file = str(file)
        self._found: dict[tuple[int, str, int], Machine] = {}

    def machine_code(self, case: Case, capability: int) -> Machine:
        """Raises KeyError for a ratio of heads that vLLM has no kernel for."""
        if not any(key[0] == capability for key in self._found):
            self._read(capability)
        return self._found[capability, case.state, case.value_heads // case.key_heads]

    def _read(self, capability: int) -> None:
        arch = ("-arch", f"sm_{capability}")
        usage = re.sub(r":\n\s+REG", ": REG", tool("cuobjdump", "-res-usage", *arch, self._file))
        wanted = {_TYPES[state]: state for state in STATES}
        for symbol, state, ratio, resources in _SYMBOL.findall(usage):
            taken = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", resources)}
            text = tool("cuobjdump", "-sass", "-fun", symbol, *arch, self._file)
            # What ptxas counts has the reserved bytes from sm_90 on.
            reserved = 1024 if capability >= 90 else 0
            self._found[capability, wanted[state], int(ratio)] = Machine(
                text=text.partition(f"Function : {symbol}")[2],
                registers=taken["REG"],
                local=taken["STACK"] + taken["LOCAL"],
                shared=taken["SHARED"] - reserved,
                warps=_WARPS,
            )
