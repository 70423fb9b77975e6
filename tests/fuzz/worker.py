"""`python -m tests.fuzz.worker`: runs jobs, one line of JSON in, one out.

SIGALRM ends the process if a job hangs, whatever it does then: it has no handler.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HANG = 20  # seconds
ADDRESS_SPACE = 4 * 2**30  # of a check: an allocation by a stranger's number fails instead of swapping
FORGED = "FORGED"  # a changed text has a line that begins with it
_STATUS = Path("/proc/self/status")


def _megabytes(field: str) -> float:
    return int(re.search(rf"{field}:\s+(\d+)", _STATUS.read_text())[1]) / 1024


def _where(error: BaseException) -> str:
    """The kind of a failure: type, the innermost frame, and our innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "vllm_eagle_ext" in frame.filename]
    places = [f"{Path(f.filename).name}:{f.name}" for f in [*ours[-1:], *frames[-1:]]]
    return " < ".join([type(error).__name__, *dict.fromkeys(places[::-1])])


def _checker() -> Callable[[Any], dict[str, Any]]:
    from typer.testing import CliRunner

    from vllm_eagle_ext.cli import app

    runner = CliRunner()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))

    def check(argv: list[str]) -> dict[str, Any]:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        before, started = _megabytes("VmHWM"), time.process_time()
        result = runner.invoke(app, [*argv, "--quick"] if argv[0] == "check" else argv)
        code = 0 if result.exit_code == 3 else result.exit_code  # the files allow it
        seconds = time.process_time() - started
        failure = ""
        if result.exception and not isinstance(result.exception, SystemExit):
            failure = f"traceback: {_where(result.exception)}"
        elif code not in (0, 1, 2):
            failure = f"exit status {result.exit_code}"
        elif not all(line.isprintable() for line in result.output.split("\n")):
            failure = "output that is not printable"
        elif any(line.strip().startswith(FORGED) for line in result.output.split("\n")):
            failure = "a line that the draft wrote"
        return {
            "exit": code, "failure": failure, "output": result.output, "seconds": seconds,
            "megabytes": _megabytes("VmHWM"), "rise": _megabytes("VmHWM") - before,
        }  # fmt: skip

    return check


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # vLLM logs there
    run = _checker()
    print("ready", file=answers, flush=True)
    os.dup2(1, 2)
    for line in sys.stdin:
        signal.alarm(HANG)
        answer = run(json.loads(line))
        signal.alarm(0)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
