"""`python -m tests.fuzz.worker check|build`: runs jobs, one line of JSON in, one out.

SIGALRM ends the process if a job hangs, whatever it does then: it has no handler.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HANG = {"check": 20, "build": 120}  # seconds
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

    from vllm_eagle_ext.cli.app import app

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


def _builder() -> Callable[[Any], dict[str, Any]]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.transformers_utils import repo_utils
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from vllm_eagle_ext import plugin

    plugin.register()
    repo_utils.time = SimpleNamespace(sleep=lambda seconds: None)  # before vLLM reads a config again
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())

    def build(command: str) -> dict[str, Any]:
        """Build what the printed command starts with."""
        words = shlex.split(command)
        start = words.index("vllm")
        settings = {"VLLM_USE_V2_MODEL_RUNNER": "0"} | dict(word.split("=", 1) for word in words[:start])
        os.environ |= settings
        try:
            words = ["--model", *words[start + 2 :], "--skip-tokenizer-init"]
            arguments = parser.parse_args(words)
            engine_args = AsyncEngineArgs.from_cli_args(arguments)
            model_config = engine_args.create_model_config()
            engine_args.create_speculative_config(model_config, _ranks(engine_args))
        except (Exception, SystemExit) as error:  # noqa: BLE001
            return {"failure": f"{_where(error)}: {_kind(error)}", "error": str(error)[:600]}
        return {"failure": ""}

    return build


def _ranks(engine_args: Any) -> Any:
    from vllm.config import ParallelConfig

    return ParallelConfig(tensor_parallel_size=engine_args.tensor_parallel_size)


def _kind(error: BaseException) -> str:
    """The message without its values."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|[\d.]+", "_", " ".join(str(error).split()))
    return text[:90]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # vLLM logs there
    run = {"check": _checker, "build": _builder}[sys.argv[1]]()
    print("ready", file=answers, flush=True)
    os.dup2(1, 2)
    for line in sys.stdin:
        signal.alarm(HANG[sys.argv[1]])
        answer = run(json.loads(line))
        signal.alarm(0)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
