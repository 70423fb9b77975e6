"""What is told of an engine that failed."""

from __future__ import annotations

from tests.unit.test_failure_causes import CORE, POINTER, WAITED, WORKER
from vllm_eagle_ext.measure.engine.client import EngineProcess

CAUSE = "ValueError: vllm-eagle-ext: values of fc.weight is 'infinite'. Allowed: finite numbers."


def test_a_workers_cause_is_the_value_and_ends_the_excerpt(tmp_path):
    """Behind it lie a hundred lines of those that waited for it."""
    log = tmp_path / "engine.log"
    waited = [f'{CORE}  File "vllm/v1/engine/core.py", line {n}, in run' for n in range(60)]
    log.write_text("\n".join([WORKER + "WorkerProc failed to start.", WORKER + CAUSE, *waited,
                              CORE + WAITED, POINTER]))  # fmt: skip
    for error in (POINTER, WAITED, "exit status 1"):
        failed = EngineProcess({}, log, name="the engine with the draft")._failed(error)
        assert failed.field == "the engine with the draft"
        assert failed.value == CAUSE
        assert failed.remedy.splitlines()[-1] == WORKER + CAUSE
