"""Dry starts for tests, each in a fork of one warm process: some hundredths of a second for one.

`python -P -m tests.support.warm_child [DEVICE]` reads a request's path and settings, a line of JSON,
and answers with what the process of a dry start would have written.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.engine import TINY
from tests.support.forks import in_fork
from vllm_eagle_ext.draft import read_draft_files
from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.start import dry, dry_child

_LIMIT_S = 60
_FIRST = (("postnorm", "target", "eagle3"), ("dflash", "hybrid_target", "dflash"))


def words_of(engine: Mapping[str, Any]) -> list[str]:
    """Keywords of LLM() as options of `vllm serve`."""
    words = ["--skip-tokenizer-init"]
    for key, value in engine.items():
        option = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{option}")
        else:
            words += [f"--{option}", value if isinstance(value, str) else json.dumps(value)]
    return words


class WarmChild:
    """Stands for `dry.start_child`; the process ends with its pipe."""

    def __init__(self, device: str | None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        environment = dry._environment(Path(self._folder.name), {})
        environment.pop("VLLM_USE_V2_MODEL_RUNNER", None)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.warm_child", *([device] if device else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip

    def __call__(
        self, request: dry_child.DryRequest, folder: Path, settings: Mapping[str, str]
    ) -> Mapping[str, Any]:
        path = folder / "request"
        path.write_bytes(pickle.dumps(request))
        return self._ask({"request": str(path), "settings": dict(settings), "folder": os.getcwd()})

    def start(self, keywords: Mapping[str, Any], settings: Mapping[str, str]) -> Mapping[str, Any]:
        """What a start itself says of keywords of EngineArgs: nothing is collected."""
        return self._ask({"start": dict(keywords), "settings": dict(settings), "folder": os.getcwd()})

    def _ask(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait(timeout=_LIMIT_S)
        self._folder.cleanup()


_warm: dict[str | None, WarmChild] = {}


def start_warmly(
    request: dry_child.DryRequest, folder: Path, settings: Mapping[str, str]
) -> Mapping[str, Any]:
    """As `dry.start_child`, by the warm process of the request's device."""
    return of_device(request.device)(request, folder, settings)


def of_device(device: str | None) -> WarmChild:
    if device not in _warm or _warm[device]._process.poll() is not None:
        _warm[device] = WarmChild(device)
    return _warm[device]


def close_all() -> None:
    while _warm:
        _warm.popitem()[1].close()


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else None
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints
    dry_child.warm(device)
    from vllm.plugins import load_general_plugins
    from vllm.transformers_utils import repo_utils

    load_general_plugins()
    repo_utils.time = SimpleNamespace(sleep=lambda seconds: None)  # before a config is read again
    for draft, target, method in _FIRST:  # what vLLM imports with a start
        words = {"method": method, "model": str(TINY / draft), "num_speculative_tokens": 3}
        request = dry_child.DryRequest(
            words=[str(TINY / target), "--speculative-config", json.dumps(words)],
            draft=str(TINY / draft), files=read_draft_files(str(TINY / draft)), device=device,
        )  # fmt: skip
        dry_child.answer(request)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        text, status = in_fork(partial(_answered, json.loads(line)), _LIMIT_S)
        answers.write((text or json.dumps({"failed": f"the fork ended with {status}"})) + "\n")
        answers.flush()


def _started(keywords: dict[str, Any]) -> dict[str, Any]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    from vllm_eagle_ext.start import described

    ranks = (keywords.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline"))
    described.give_devices(prod(ranks))
    try:
        AsyncEngineArgs(**keywords).create_engine_config(UsageContext.OPENAI_API_SERVER)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever ends a start is its answer
        return {"served": False, "ours": isinstance(error, EagleExtError), "error": str(error)}
    return {"served": True, "ours": False, "error": ""}


def _answered(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    os.environ.update(asked["settings"])
    os.chdir(asked["folder"])
    if "start" in asked:
        return _started(asked["start"])
    return dry_child.answer(pickle.loads(Path(asked["request"]).read_bytes()))


if __name__ == "__main__":
    main()
