"""An engine of which the kernel kills a process, as where memory runs out, is told as that."""

from __future__ import annotations

import psutil
import pytest

from tests.support.engine import TINY
from vllm_eagle_ext.measure.engine.client import EngineFailedError, EngineProcess
from vllm_eagle_ext.measure.engine.load import Load
from vllm_eagle_ext.measure.engine.machine import with_memory

pytestmark = pytest.mark.long
ARGUMENTS = {"model": str(TINY / "target"), "enforce_eager": True, "max_model_len": 512}


def victims(process):
    """Of the engine's processes the first, the core and a worker, where that is one of its own."""
    below = psutil.Process(process.pid).children(recursive=True)
    named = {child.name(): child for child in below if child.name().startswith("VLLM::")}
    core = next(child for name, child in named.items() if "EngineCore" in name)
    return {
        "first": psutil.Process(process.pid),
        "core": core,
        "worker": next((child for name, child in named.items() if "Worker" in name), core),
    }


@pytest.mark.parametrize(
    ("victim", "name"),
    [
        ("worker", "VllmWorker"),
        ("core", "EngineCore"),
        ("first", "its process"),
    ],
)
def test_a_killed_process_is_named(tmp_path, victim, name):
    arguments, _ = with_memory(ARGUMENTS, [str(TINY / "target")])
    load = Load([[1, 2, 3]] * 64, 8, 400, ignore_eos=True)

    killed = []

    def kill(_):  # several requests end before the client reads of the first
        if not killed:
            killed.append(victims(engine.process)[victim])
            killed[0].kill()

    with (
        EngineProcess(arguments, tmp_path / "log", plugin=False) as engine,
        pytest.raises(EngineFailedError) as failed,
    ):
        engine.load(load, kill)
    assert str(failed.value.value).startswith(f"Error: {name}")
    assert "was killed (SIGKILL), as the kernel does where memory runs out" in str(failed.value)
