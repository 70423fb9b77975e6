"""These tests call Triton kernels: on a GPU as they are, else in a process with the interpreter
(`tests/unit/replay/test_triton_ops.py` starts it), because a process has it or has it not.
"""

from __future__ import annotations

import os

from tests.support.engine import has_gpu

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if has_gpu() or IS_INTERPRETED else ["test_*.py"]

if IS_INTERPRETED:
    from triton.runtime import driver

    assert driver.active.get_current_target().backend == "cpu"  # its driver hastens the interpreter
