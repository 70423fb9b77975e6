"""The line of a log that tells why an engine failed."""

from __future__ import annotations

import pytest

from vllm_eagle_ext.cli.engine.causes import cause_of

POINTER = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
LOG = [
    "(Worker pid=7) ERROR 01-01 [executor.py:1] ValueError: less memory than asked for",
    "(EngineCore pid=6) ERROR 01-01 [core.py:1]   raise RuntimeError(",
    "(EngineCore pid=6) ERROR 01-01 [core.py:1] RuntimeError: Worker failed: less memory than asked for",
    "Traceback (most recent call last):",
    '  File "core_client.py", line 925, in __init__',
    POINTER,
]


def test_an_error_that_tells_is_its_own_cause():
    assert cause_of("ValueError: no such draft", LOG) == ("ValueError: no such draft", len(LOG))


def test_one_that_points_elsewhere_is_looked_up():
    """Behind it lies the whole traceback of the process that only waited."""
    assert cause_of(POINTER, LOG) == ("RuntimeError: Worker failed: less memory than asked for", 3)


@pytest.mark.parametrize("error", [POINTER, "exit status -9"])
def test_without_a_telling_line_it_is_what_there_is(error):
    assert cause_of(error, ["INFO all is well"]) == (error, 1)


def test_an_exit_is_explained_by_the_log():
    assert cause_of("exit status 1", LOG)[0].startswith("RuntimeError: Worker failed")
