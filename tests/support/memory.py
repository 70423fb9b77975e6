"""Takes most of a CPU node's memory for a while, as neighbours on a shared machine do."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

GIB = 2**30
LEFT = 0.38  # of the node's memory; vLLM's default asks for 0.92, the guides' commands for 0.3
_LEAST_LEFT = 0.33
_MOST_HELD = 64 * GIB  # more takes minutes to touch
_SPARE = 3 * GIB // 2  # beside that share, for processes that are not of this node alone
_HOLD = (
    "import sys; size = int(sys.argv[1]); held = bytearray(size); "
    "held[::4096] = b'x' * len(range(0, size, 4096)); print('held', flush=True); sys.stdin.read()"
)


def share_left() -> float:
    """What vLLM's CPU backend finds available."""
    from vllm.utils.cpu_resource_utils import get_memory_node_info

    found = get_memory_node_info(0)
    return found.available_memory / found.total_memory


@contextlib.contextmanager
def most_memory_taken() -> Iterator[float]:
    """The share that is left. The memory is held by a process that ends with this one, too."""
    from vllm.utils.cpu_resource_utils import get_memory_node_info

    found = get_memory_node_info(0)
    size = int(found.available_memory - LEFT * found.total_memory)
    if size <= 0:
        _skip_below(share_left())
        yield share_left()
        return
    if size > _MOST_HELD:
        pytest.skip(f"{size / GIB:.0f} GiB would have to be held, which takes minutes")
    rest = psutil.virtual_memory().available - size
    if rest < LEFT * found.total_memory + _SPARE:
        pytest.skip(f"only {rest / GIB:.1f} GiB of this machine would be left, too few for an engine")
    command = [sys.executable, "-c", _HOLD, str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin
        assert holder.stdout
        try:
            assert holder.stdout.readline() == b"held\n"
            _skip_below(share_left())
            yield share_left()
        finally:
            holder.stdin.close()
            holder.wait(60)


def _skip_below(share: float) -> None:
    if share < _LEAST_LEFT:
        pytest.skip(
            f"other processes leave {share:.0%} of the node's memory, fewer than an engine needs"
        )
