"""The line that tells why an engine failed."""

from __future__ import annotations

import pytest

from vllm_eagle_ext.measure.bench.printed import reason
from vllm_eagle_ext.measure.engine.client import EngineProcess
from vllm_eagle_ext.start.failed_start import cause_of, earliest, is_pointer

POINTER = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
WAITED = (
    "Exception: WorkerProc initialization failed due to an exception in a background process. See "
    "stack trace for root cause."
)
WORKER, SECOND = (
    "(Worker_TP0 pid=7) ERROR 01-01 [executor.py:1] ",
    "(Worker_TP1 pid=8) ERROR 01-01 [e.py:1] ",
)
CORE = "(EngineCore pid=6) ERROR 01-01 [core.py:1] "
LOG = [
    WORKER + "ValueError: less memory than asked for",
    CORE + "  raise RuntimeError(",
    CORE + "RuntimeError: Worker failed: less memory than asked for",
    "Traceback (most recent call last):",
    '  File "core_client.py", line 925, in __init__',
    POINTER,
]


# As vLLM 0.32 logs it: the core waits for its workers, and the front end for the core.
OF_A_WORKER = [
    "INFO 01-01 [x.py:1] loading",
    WORKER + "WorkerProc failed to start.",
    WORKER + "ValueError: vllm-eagle-ext: fc.weight is not finite.",
    CORE + "EngineCore failed to start.",
    CORE + WAITED,
    "Process EngineCore:",
    WAITED,
    POINTER,
]
LED_TO_ANOTHER = [
    SECOND + "ImportError: an optional library is missing",  # it goes on
    WORKER + "ValueError: fc.weight is not finite",
    SECOND + "RuntimeError: Connection closed by peer",
    CORE + WAITED,
]
OF_ONE_PROCESS = ["ImportError: optional", "Traceback", "ValueError: the cause", POINTER]
CAUSES = [  # error, log, cause and its line
    ("ValueError: no such draft", LOG, ("ValueError: no such draft", len(LOG))),
    # Behind it lie the errors of the processes that waited for that one.
    (POINTER, LOG, ("ValueError: less memory than asked for", 1)),
    ("exit status 1", LOG, ("ValueError: less memory than asked for", 1)),
    (POINTER, OF_A_WORKER, ("ValueError: vllm-eagle-ext: fc.weight is not finite.", 3)),
    (WAITED, OF_A_WORKER, ("ValueError: vllm-eagle-ext: fc.weight is not finite.", 3)),
    (POINTER, LED_TO_ANOTHER, ("ValueError: fc.weight is not finite", 2)),
    (POINTER, OF_ONE_PROCESS, ("ValueError: the cause", 3)),
    (POINTER, ["INFO all is well"], (POINTER, 1)),
    ("exit status -6", ["INFO all is well"], ("exit status -6", 1)),
]


@pytest.mark.parametrize(("error", "log", "cause"), CAUSES, ids=lambda value: str(value)[:30])
def test_the_cause_and_its_line(error, log, cause):
    assert cause_of(error, log) == cause


@pytest.mark.parametrize(
    "text",
    [
        "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "RuntimeError: Worker failed with error 'x', please check the stack trace above",
        "RuntimeError: Engine core process EngineCore_DP0 died unexpectedly.",
        "RuntimeError: Process ApiServer_1 (PID: 9) died with exit code 1",
        "RuntimeError: Frontend process failed during engine core initialization. See root cause above.",
        "pydantic_core._pydantic_core.ValidationError: 2 validation errors for VllmConfig",
    ],
)
def test_what_points_elsewhere_in_vllm(text):
    assert is_pointer(text)
    assert cause_of(text, LOG)[0] == "ValueError: less memory than asked for"


KILLED = "was killed (SIGKILL), as the kernel does where memory runs out"
DIED = "(exit code: -9), shutting down executor."


@pytest.mark.parametrize(
    ("error", "line", "name"),
    [
        (
            "EngineDeadError: EngineCore encountered an issue. See stack trace for the root cause.",
            f"{CORE}Worker proc VllmWorker-1 died unexpectedly {DIED}",
            "VllmWorker-1",
        ),
        ("RuntimeError: Executor failed.", f"{CORE}Worker proc VllmWorker-0 died unexpectedly {DIED}",
         "VllmWorker-0"),
        ("EngineDeadError: EngineCore encountered an issue.", "process EngineCore (exit code: -9)",
         "EngineCore"),
        (POINTER.replace("{}", "{'EngineCore_DP0': -9}"), "INFO all is well", "EngineCore_DP0"),
        ("exit status -9", "INFO all is well", "its process"),
    ],
)  # fmt: skip
def test_a_killed_process_is_the_cause(tmp_path, error, line, name):
    """As vLLM 0.32 logs it; the errors of those that waited for it follow."""
    log = ["INFO 01-01 loading", line, CORE + "RuntimeError: Executor failed."]
    said, _ = cause_of(error, log)
    assert said == f"Error: {name} {KILLED}"
    (tmp_path / "log").write_text("\n".join(log))
    failed = EngineProcess({}, tmp_path / "log")._failed(error)
    text = "\n".join([f"{failed.value}", failed.remedy, *failed.more])  # as a report keeps it
    assert reason(text) == said


def test_an_end_that_vllm_read_too_early():
    """The end of a process is seen a moment before its status can be read."""
    line = f"{CORE}Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor."
    said, _ = cause_of("RuntimeError: cancelled", [line, CORE + "RuntimeError: cancelled"])
    assert said == f"Error: VllmWorker-0 {KILLED}"
    raised = "(Worker_TP0 pid=7) ERROR 01-01 [x.py:1] ValueError: no memory for states"
    assert "SIGKILL" not in cause_of("RuntimeError: cancelled", [raised, line])[0]


@pytest.mark.parametrize("code", [1, -6, -15, -90])
def test_another_end_is_no_kill(code):
    line = (
        f"{CORE}Worker proc VllmWorker-0 died unexpectedly (exit code: {code}), shutting down executor."
    )
    assert "SIGKILL" not in cause_of(POINTER, [line])[0]


def test_the_earliest_need_not_be_called_an_error():
    said = [("1", "triton.runtime.errors.OutOfResources: out of resource"), ("2", WAITED)]
    assert earliest(said) == 0
    assert earliest([("1", WAITED), ("2", POINTER)]) is None


CAUSE = "ValueError: vllm-eagle-ext: values of fc.weight is 'infinite'. Allowed: finite numbers."


def test_a_workers_cause_is_the_value_and_ends_the_excerpt(tmp_path):
    """In what is told of an engine; behind it lie a hundred lines of those that waited for it."""
    log = tmp_path / "engine.log"
    waited = [f'{CORE}  File "vllm/v1/engine/core.py", line {n}, in run' for n in range(60)]
    log.write_text("\n".join([WORKER + "WorkerProc failed to start.", WORKER + CAUSE, *waited,
                              CORE + WAITED, POINTER]))  # fmt: skip
    for error in (POINTER, WAITED, "exit status 1"):
        failed = EngineProcess({}, log, name="the engine with the draft")._failed(error)
        assert failed.field == "the engine with the draft"
        assert failed.value == CAUSE
        assert failed.more[-1] == WORKER + CAUSE
