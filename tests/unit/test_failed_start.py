"""What the first process says last when a start failed, and when it says nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine import python_path

COMMON = """
import logging, logging.config, multiprocessing, os, sys
from vllm_eagle_ext import failed_start
from vllm_eagle_ext.errors import OptionsError

POINTER = "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
REFUSED = dict(field="aux_layer", value=1, allowed="aux_layers", remedy="mind the spelling")


def configured_anew():
    logging.config.dictConfig({
        "version": 1, "disable_existing_loggers": False,
        "handlers": {"none": {"class": "logging.NullHandler"}},
        "loggers": {"vllm": {"handlers": ["none"], "propagate": False}},
    })


def worker(method):
    if method == "spawn":
        failed_start.join()  # as the plugin's register() does
    configured_anew()
    logger = logging.getLogger("vllm.v1.executor.multiproc_executor")
    try:
        raise ValueError("fc.weight is not finite.\\n  draft: tiny")
    except ValueError:
        logger.exception("WorkerProc failed to start.")


def core(method):
    child = multiprocessing.get_context(method).Process(target=worker, args=(method,))
    if method == "spawn":
        failed_start.join()
    child.start()
    child.join()
    configured_anew()
    try:
        raise Exception("WorkerProc initialization failed due to an exception in a background process.")
    except Exception:
        logging.getLogger("vllm.v1.engine.core").exception("EngineCore failed to start.")


def start(method):
    child = multiprocessing.get_context(method).Process(target=core, args=(method,))
    child.start()
    child.join()
    raise RuntimeError(POINTER)


def create_engine_config(error):
    raise error
"""


def last_lines(tmp_path, code: str, left=()) -> list[str]:
    """Run a program that ends with an exception, and give the last lines of its standard error."""
    program = tmp_path / "program.py"
    body = "\n".join(f"    {line}" for line in code.splitlines())
    program.write_text(f"{COMMON}\nif __name__ == '__main__':\n{body}\n")
    environment = os.environ | {"PYTHONPATH": python_path(), "TMPDIR": str(tmp_path)}
    environment.pop("EAGLE_EXT_NOTES", None)  # of a start in this process
    result = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, env=environment, timeout=60,
        check=False,
    )  # fmt: skip
    assert "Traceback (most recent call last)" in result.stderr
    assert list(tmp_path.glob("vllm-eagle-ext-*")) == list(left), "the notes were left behind"
    return result.stderr.strip().splitlines()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_workers_error_is_told_last(tmp_path, method):
    lines = last_lines(tmp_path, f"failed_start.watch()\nstart({method!r})")
    assert lines[-2].startswith("RuntimeError: Engine core initialization failed.")
    assert lines[-1] == (
        "vllm-eagle-ext: the engine did not start: ValueError: fc.weight is not finite."
    )


def test_an_engine_that_ended_later_says_so(tmp_path):
    code = (
        "failed_start.watch()\ncore_child = multiprocessing.get_context('fork').Process(\n"
        "    target=core, args=('fork',))\ncore_child.start()\ncore_child.join()\n"
        "raise RuntimeError('EngineCore encountered an issue. See stack trace (above).')"
    )
    assert last_lines(tmp_path, code)[-1] == (
        "vllm-eagle-ext: the engine ended: ValueError: fc.weight is not finite."
    )


def test_a_start_does_without_a_file_for_notes(tmp_path):
    code = "del os.memfd_create  # as on other systems than Linux\nfailed_start.watch()\nstart('fork')"
    assert last_lines(tmp_path, code)[-1].startswith("RuntimeError: Engine core")


@pytest.mark.parametrize("name", ["99999999999999999999-x", "-1-x", "0-x", "x", "\udcff", "1"])
def test_files_of_others_in_the_temporary_folder_stop_no_start(tmp_path, name):
    """Anybody may write there, under any name."""
    stranger = tmp_path / f"vllm-eagle-ext-{name}.jsonl"
    stranger.write_bytes(b"theirs")
    lines = last_lines(tmp_path, "failed_start.watch()\nstart('fork')", left=[stranger])
    assert lines[-1].startswith("vllm-eagle-ext: the engine did not start: ValueError: fc.weight")
    assert stranger.read_bytes() == b"theirs"


@pytest.mark.parametrize("failing", ["_notes", "_file", "join"])
def test_whatever_fails_in_watching_fails_no_start(tmp_path, failing):
    code = (
        f"def fail(*_): raise RecursionError\nfailed_start.{failing} = fail\n"
        "failed_start.watch()\nraise KeyError('it went on')"
    )
    assert last_lines(tmp_path, code)[-1] == "KeyError: 'it went on'"


def test_a_killed_process_leaves_nothing(tmp_path):
    code = (
        "import os, signal\nfrom vllm_eagle_ext import failed_start\nfailed_start.watch()\n"
        "print(os.environ[failed_start.NOTES], os.path.exists(os.environ[failed_start.NOTES]), "
        "flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = os.environ | {"PYTHONPATH": python_path(), "TMPDIR": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    path, existed = result.stdout.split()
    assert (existed, result.returncode) == ("True", -signal.SIGKILL)
    assert not os.path.exists(path)
    assert not list(tmp_path.iterdir())


def test_notes_never_go_into_another_file(tmp_path, monkeypatch):
    """A number may have been given anew: to a process, or to a file of one."""
    from vllm_eagle_ext import failed_start

    with (tmp_path / "theirs").open("w") as theirs:
        monkeypatch.setenv(failed_start.NOTES, f"/proc/{os.getpid()}/fd/{theirs.fileno()}")
        with pytest.raises(FileNotFoundError):
            failed_start._note(ValueError("ours"))
    assert (tmp_path / "theirs").read_text() == ""


def test_a_second_start_after_the_environment_was_restored(tmp_path):
    code = (
        "from unittest import mock\nwith mock.patch.dict(os.environ):\n    failed_start.watch()\n"
        "assert failed_start.NOTES not in os.environ\nfailed_start.watch()\nstart('fork')"
    )
    assert last_lines(tmp_path, code)[-1] == (
        "vllm-eagle-ext: the engine did not start: ValueError: fc.weight is not finite."
    )


def test_without_a_draft_nothing_is_added(tmp_path):
    lines = last_lines(tmp_path, "start('fork')")
    assert lines[-1].startswith("RuntimeError: Engine core initialization failed.")


def test_a_later_error_of_the_program_is_its_own(tmp_path):
    code = "failed_start.watch()\ntry:\n    start('fork')\nexcept RuntimeError:\n    pass\nint('x')"
    lines = last_lines(tmp_path, code)
    assert lines[-1].startswith("ValueError: invalid literal")
    assert "did not start" not in "".join(lines)


def test_what_an_earlier_start_noted_is_dropped(tmp_path):
    code = (
        "failed_start.watch()\ntry:\n    start('fork')\nexcept RuntimeError:\n    pass\n"
        "failed_start.watch()\nraise RuntimeError(POINTER)"
    )
    assert last_lines(tmp_path, code)[-1].startswith("RuntimeError: Engine core")


def test_a_refusal_of_several_lines_is_told_in_one(tmp_path):
    code = (
        "failed_start.watch()\nREFUSED['more'] = ['also: the rest', 'draft: tiny']\n"
        "create_engine_config(OptionsError(**REFUSED))"
    )
    lines = last_lines(tmp_path, code)
    assert lines[-2] == "  draft: tiny"
    assert lines[-1] == (
        "vllm-eagle-ext: the engine did not start: aux_layer is 1. Allowed: aux_layers. What to do: "
        "mind the spelling"
    )


def test_a_refusal_of_one_line_is_not_told_twice(tmp_path):
    lines = last_lines(tmp_path, "failed_start.watch()\nraise OptionsError(**REFUSED)")
    assert lines[-1].startswith("vllm_eagle_ext.errors.OptionsError: vllm-eagle-ext: aux_layer is 1.")


def test_pydantics_first_error_is_the_cause(tmp_path):
    code = (
        "from pydantic import BaseModel\nclass CacheConfig(BaseModel):\n    block_size: int\n"
        "failed_start.watch()\ndef create_engine_config():\n    CacheConfig(block_size='x')\n"
        "create_engine_config()"
    )
    assert last_lines(tmp_path, code)[-1].startswith(
        "vllm-eagle-ext: the engine did not start: pydantic_core._pydantic_core.ValidationError: "
        "block_size: Input should be a valid integer"
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("OutOfResources('out of resource: threads')", "OutOfResources: out of resource: threads"),
        ("Unsupported('Graph break\\n  AnError: of a hint')", "Unsupported: Graph break"),
        ("ValueError('\\n  too little memory\\n  hint')", "ValueError: too little memory"),
    ],
)
def test_any_exception_is_told_by_its_first_words(tmp_path, error, told):
    """Libraries name some of their errors otherwise, and begin some messages with a new line."""
    code = (
        "class OutOfResources(Exception): pass\nclass Unsupported(Exception): pass\n"
        f"failed_start.watch()\ntry:\n    raise {error}\nexcept Exception:\n"
        "    logging.getLogger('vllm.x').exception('EngineCore failed to start.')\n"
        "raise RuntimeError(POINTER)"
    )
    last = last_lines(tmp_path, code)[-1].replace("__main__.", "")
    assert last == f"vllm-eagle-ext: the engine did not start: {told}"


def test_an_assertion_without_a_message_is_told_by_its_code(tmp_path):
    code = (
        "failed_start.watch()\ntry:\n    assert 1 > 2\nexcept AssertionError:\n"
        "    logging.getLogger('vllm.x').exception('EngineCore failed to start.')\n"
        "raise RuntimeError(POINTER)"
    )
    assert "AssertionError: assert 1 > 2 (" in last_lines(tmp_path, code)[-1]


@pytest.fixture
def notes(monkeypatch):
    """The file of this process, whose hooks are put back."""
    from vllm_eagle_ext import failed_start

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    path = failed_start._notes.__wrapped__(os.getpid())
    monkeypatch.setenv(failed_start.NOTES, path)
    yield Path(path)
    os.close(int(path.rpartition("/")[2]))


def test_notes_are_bounded(notes):
    from vllm_eagle_ext import failed_start

    for number in range(100):
        failed_start._note(ValueError(f"{number} " + "x" * 10_000))
    assert notes.stat().st_size < failed_start._MOST_BYTES + 2 * failed_start._MOST_CHARACTERS
    kept = [json.loads(line)[1] for line in notes.read_text().splitlines()]
    assert kept[-1].startswith("ValueError: 99 x"), "the last may be the one that ends the engine"


def test_a_syntax_error_is_told_without_its_code():
    from vllm_eagle_ext import failed_start

    with pytest.raises(SyntaxError) as caught:
        compile("a: int: 3", "config.py", "exec")
    assert failed_start.line_of(caught.value) == "SyntaxError: invalid syntax"
    assert failed_start.line_of(SystemExit()) == "SystemExit"


@pytest.mark.parametrize("notes", [None, "/nonexistent/notes.jsonl"])
def test_logging_goes_on_without_notes(monkeypatch, caplog, notes):
    import logging

    from vllm_eagle_ext import failed_start

    monkeypatch.delenv(failed_start.NOTES, raising=False)
    if notes:
        monkeypatch.setenv(failed_start.NOTES, notes)
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(logging.LogRecord)  # whatever was configured in this process before
    try:
        failed_start.join()
        assert isinstance(logging.getLogRecordFactory(), failed_start._Noting) == bool(notes)
        try:
            raise ValueError("told")
        except ValueError:
            logging.getLogger("anyone").exception("it happened")
    finally:
        logging.setLogRecordFactory(before)
    assert "it happened" in caplog.text


def test_a_record_made_with_true_for_its_exception_is_logged(notes):
    """Bridges from other loggers make such records."""
    import logging

    from vllm_eagle_ext import failed_start

    factory = failed_start._Noting(logging.LogRecord)
    record = factory("x", logging.ERROR, "file", 1, "it happened", (), True)
    assert record.getMessage() == "it happened"
