# SPDX-License-Identifier: Apache-2.0
"""The target's tokenizer and chat template, in a process with bounds, since a stranger wrote both.

    python -m vllm_eagle_ext.measure.tokenizer '{"target": .., ..}'

JSON lines out, the first after loading; JSON lines of texts in.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from vllm_eagle_ext.errors import SpeculativeConfigError

SECONDS, GIB = 10, 1  # of processor time for each line; of memory beyond that of the imports
_LETTERS = 2**18  # of a line's texts, which may be read by Python code
SWITCHES = ("enable_thinking", "thinking")  # names that chat templates give it


class Tokenizer:
    """Loads on entering a context; only `trust_remote_code` of True runs the target's code.

    Raises:
        SpeculativeConfigError: the tokenizer or its template fails or takes too much.
    """

    has_template: bool
    switch: str | None  # that turns thinking on and off
    chat_tokens: frozenset[int]  # ends of turns and other marks, which plain texts lack

    def __init__(
        self, target: str, *, revision: str | None = None, trust_remote_code: object = False
    ) -> None:
        asked = {"target": target, "revision": revision or "main", "seconds": SECONDS, "gib": GIB}
        self.target, self._asked = target, {**asked, "trusted": trust_remote_code is True}

    def __enter__(self) -> Tokenizer:
        command, pipe = [sys.executable, "-P", "-m", __name__, json.dumps(self._asked)], subprocess.PIPE
        streams: dict[str, Any] = {"stdin": pipe, "stdout": pipe, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, text=True, **streams)
        try:
            remedy = "add its tokenizer files; bench also takes --dummy and --prompt-tokens"
            self.has_template, self.switch, marks = self._answer("tokenizer", remedy)
            self.chat_tokens = frozenset(marks)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ids(self, texts: Iterable[str], **how: Any) -> Iterator[list[int]]:
        """Yield the ids of each text; `how` are arguments of `_ids`."""
        some: list[str] = []
        for text in texts:
            if some and sum(map(len, some)) + len(text) > _LETTERS:
                yield from self._read(some, how)
                some = []
            some.append(text)
        yield from self._read(some, how)

    def _read(self, texts: list[str], how: dict[str, Any]) -> list[list[int]]:
        with suppress(BrokenPipeError):  # the answer finds the end
            print(json.dumps({"texts": texts, **how}), file=self._process.stdin, flush=True)
        if how.get("switches") is None:
            return self._answer("tokenizer", "use shorter texts or another target")
        return self._answer("chat template", "use shorter texts, another target, or --no-chat-template")

    def _answer(self, field: str, remedy: str) -> Any:
        assert self._process.stdout is not None
        answer = json.loads(self._process.stdout.readline() or "{}")
        if "result" in answer:
            return answer["result"]
        if (problem := answer.get("error")) is None:
            status = self._process.wait()
            problem = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        raise SpeculativeConfigError(
            field=f"{field} of the target", value=self.target,
            allowed=f"one without errors that takes at most {SECONDS} s of processor time and {GIB} GiB",
            remedy=f"{remedy} ({problem})",
        )  # fmt: skip


def load_tokenizer(target: str, *, revision: str = "main", trusted: bool = False) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(target, revision=revision, trust_remote_code=trusted)


def _ids(
    tokenizer: Any, texts: list[str], switches: dict[str, bool] | None = None, special: bool = True
) -> Any:
    """Tokenize texts: with `switches` of a chat template as a user's turn each."""
    if switches is None:
        return tokenizer(texts, add_special_tokens=special, verbose=False)["input_ids"] if texts else []
    how: dict[str, Any] = {"add_generation_prompt": True, "return_dict": True, **switches}
    turns = ([{"role": "user", "content": text}] for text in texts)
    return [tokenizer.apply_chat_template(turn, **how)["input_ids"] for turn in turns]


def _chat_tokens(tokenizer: Any, template: str) -> list[int]:
    """Return the added tokens that are special, such as ends of turns, or stand in the chat template."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).items()
    return [id_ for id_, token in added if token.special or token.content in template]


def _bound(kind: int, limit: int) -> None:
    resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))


def _results(seconds: int, gib: float, trusted: bool, **which: Any) -> Iterator[Any]:
    if not trusted:
        sys.modules["torch"] = None  # type: ignore[assignment]  # takes seconds to import
    import transformers  # noqa: F401

    _bound(resource.RLIMIT_CORE, 0)
    with suppress(OSError):  # no Linux
        used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        _bound(resource.RLIMIT_DATA, used + int(gib * 2**30))
    _bound(resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds)
    tokenizer = load_tokenizer(**which, trusted=trusted)
    template = getattr(tokenizer, "chat_template", None)
    switch = next((s for s in SWITCHES if s in json.dumps(template)), None)
    yield [template is not None, switch, _chat_tokens(tokenizer, str(template))]
    for line in sys.stdin:
        _bound(resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds)
        yield _ids(tokenizer, **json.loads(line))


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        for result in _results(**json.loads(sys.argv[1])):
            print(json.dumps({"result": result}), file=answers)
    except Exception as error:  # noqa: BLE001 (what a stranger's file leads to)
        first = next(iter(str(error).splitlines()), "")
        print(json.dumps({"error": f"{type(error).__name__}: {first}"}), file=answers)


if __name__ == "__main__":
    _serve()
