"""What the first process says last when a start failed, and when it says nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine import python_path

COMMON = """
import logging, logging.config, multiprocessing, os, sys
from vllm_eagle_ext.start import failed_start
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


def last_lines(tmp_path, code: str) -> list[str]:
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
    assert not list(tmp_path.glob("vllm-eagle-ext-*")), "the notes were left behind"
    return result.stderr.strip().splitlines()


TOLD = "vllm-eagle-ext: the engine did not start: "
NOT_FINITE = "ValueError: fc.weight is not finite."
POINTER = "RuntimeError: Engine core initialization failed."
RAISES_LATER = "try:\n    start('fork')\nexcept RuntimeError:\n    pass\n"
MODEL = "from pydantic import BaseModel, model_validator\nclass CacheConfig(BaseModel):\n"
CONFIGURE = (
    "failed_start.watch()\ndef create_engine_config():\n    CacheConfig({})\ncreate_engine_config()"
)
LOGGED = (
    "class OutOfResources(Exception): pass\nclass Unsupported(Exception): pass\n"
    "failed_start.watch()\ntry:\n    {}\nexcept Exception:\n"
    "    logging.getLogger('vllm.x').exception('EngineCore failed to start.')\n"
    "raise RuntimeError(POINTER)"
)
# A program, and how its last line begins.
PROGRAMS = {
    "a worker that was spawned": ("failed_start.watch()\nstart('spawn')", TOLD + NOT_FINITE),
    "a worker that was forked": ("failed_start.watch()\nstart('fork')", TOLD + NOT_FINITE),
    "an engine that ended later": (
        ("failed_start.watch()\ncore_child = multiprocessing.get_context('fork').Process(\n"
        "    target=core, args=('fork',))\ncore_child.start()\ncore_child.join()\n"
        "raise RuntimeError('EngineCore encountered an issue. See stack trace (above).')"),
        f"vllm-eagle-ext: the engine ended: {NOT_FINITE}",
    ),
    "no file for notes, as on other systems than Linux": (
        "del os.memfd_create\nfailed_start.watch()\nstart('fork')", POINTER,
    ),
    "a second start after the environment was restored": (
        ("from unittest import mock\nwith mock.patch.dict(os.environ):\n    failed_start.watch()\n"
        "assert failed_start.NOTES not in os.environ\nfailed_start.watch()\nstart('fork')"),
        TOLD + NOT_FINITE,
    ),
    "without a draft": ("start('fork')", POINTER),
    "a later error of the program": (
        f"failed_start.watch()\n{RAISES_LATER}int('x')", "ValueError: invalid literal",
    ),
    "what an earlier start noted is dropped": (
        f"failed_start.watch()\n{RAISES_LATER}failed_start.watch()\nraise RuntimeError(POINTER)",
        POINTER,
    ),
    "a refusal of several lines is told in one": (
        ("failed_start.watch()\nREFUSED['more'] = ['also: the rest', 'draft: tiny']\n"
        "create_engine_config(OptionsError(**REFUSED))"),
        TOLD + "aux_layer is 1. Allowed: aux_layers. What to do: mind the spelling",
    ),
    "a refusal of one line is not told twice": (
        "failed_start.watch()\nraise OptionsError(**REFUSED)",
        "vllm_eagle_ext.errors.OptionsError: vllm-eagle-ext: aux_layer is 1.",
    ),
    "pydantic's first error": (
        MODEL + "    block_size: int\n" + CONFIGURE.format("block_size='x'"),
        TOLD + "pydantic_core._pydantic_core.ValidationError: block_size: Input should be a valid",
    ),
    "a validator's error keeps its name": (
        MODEL + "    @model_validator(mode='before')\n    def check(self):\n"
        "        raise ValueError('too few blocks: 0')\n" + CONFIGURE.format(""),
        TOLD + "pydantic_core._pydantic_core.ValidationError: Value error, too few blocks: 0",
    ),
    # Libraries name some of their errors otherwise, and begin some messages with a new line.
    "an error that is not called one": (
        LOGGED.format("raise OutOfResources('out of resource: threads')"),
        TOLD + "OutOfResources: out of resource: threads",
    ),
    "a hint that looks like an error": (
        LOGGED.format("raise Unsupported('Graph break\\n  AnError: of a hint')"),
        TOLD + "Unsupported: Graph break",
    ),
    "a message that begins with a new line": (
        LOGGED.format("raise ValueError('\\n  too little memory\\n  hint')"),
        TOLD + "ValueError: too little memory",
    ),
    "an assertion without a message is told by its code": (
        LOGGED.format("assert 1 > 2"), TOLD + "AssertionError: assert 1 > 2 (",
    ),
    **{
        f"{failing} fails in watching": (
            (f"def fail(*_): raise RecursionError\nfailed_start.{failing} = fail\n"
            "failed_start.watch()\nraise KeyError('it went on')"),
            "KeyError: 'it went on'",
        )
        for failing in ("_notes", "_file", "join")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_last_line(tmp_path, name):
    code, begins = PROGRAMS[name]
    lines = last_lines(tmp_path, code)
    assert lines[-1].replace("__main__.", "").startswith(begins)
    assert "".join(lines).count("did not start: ") == begins.startswith(TOLD)


def test_notes_never_go_into_another_file(tmp_path, monkeypatch):
    """A number may have been given anew: to a process, or to a file of one."""
    from vllm_eagle_ext.start import failed_start

    with (tmp_path / "theirs").open("w") as theirs:
        monkeypatch.setenv(failed_start.NOTES, f"/proc/{os.getpid()}/fd/{theirs.fileno()}")
        with pytest.raises(FileNotFoundError):
            failed_start._note(ValueError("ours"))
    assert (tmp_path / "theirs").read_text() == ""


@pytest.fixture
def notes(monkeypatch):
    """The file of this process, whose hooks are put back."""
    from vllm_eagle_ext.start import failed_start

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    path = failed_start._notes.__wrapped__(os.getpid())
    monkeypatch.setenv(failed_start.NOTES, path)
    yield Path(path)
    os.close(int(path.rpartition("/")[2]))


def test_notes_are_bounded(notes):
    from vllm_eagle_ext.start import failed_start

    for number in range(100):
        failed_start._note(ValueError(f"{number} " + "x" * 10_000))
    assert notes.stat().st_size < failed_start._MOST_BYTES + 2 * failed_start._MOST_CHARACTERS
    kept = [json.loads(line)[1] for line in notes.read_text().splitlines()]
    assert kept[-1].startswith("ValueError: 99 x"), "the last may be the one that ends the engine"


def test_a_syntax_error_is_told_without_its_code():
    from vllm_eagle_ext.start import failed_start

    with pytest.raises(SyntaxError) as caught:
        compile("a: int: 3", "config.py", "exec")
    assert failed_start.line_of(caught.value) == "SyntaxError: invalid syntax"
    assert failed_start.line_of(SystemExit()) == "SystemExit"


@pytest.mark.parametrize("notes", [None, "/nonexistent/notes.jsonl"])
def test_logging_goes_on_without_notes(monkeypatch, caplog, notes):
    import logging

    from vllm_eagle_ext.start import failed_start

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

    from vllm_eagle_ext.start import failed_start

    factory = failed_start._Noting(logging.LogRecord)
    record = factory("x", logging.ERROR, "file", 1, "it happened", (), True)
    assert record.getMessage() == "it happened"
