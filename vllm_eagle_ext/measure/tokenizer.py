# SPDX-License-Identifier: Apache-2.0
"""The target's tokenizer and chat template, in a process with bounds, since a stranger wrote both."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from vllm_eagle_ext.errors import EagleExtError, SpeculativeConfigError
from vllm_eagle_ext.measure.engine.client import EngineProcess
from vllm_eagle_ext.measure.engine.process import main

SECONDS, GIB = 10, 1  # of processor time for each answer; of memory beyond that of the imports
_LETTERS = 2**18  # of texts that are read at once, perhaps by Python code
SWITCHES = ("enable_thinking", "thinking")  # names that chat templates give it


class Tokenizer(EngineProcess):
    """Loads on entering a context; only `trust_remote_code` of True runs the target's code.

    Raises:
        SpeculativeConfigError: the tokenizer or its template fails or takes too much.
    """

    PROGRAM = "vllm_eagle_ext.measure.tokenizer"
    has_template: bool
    switch: str | None  # that turns thinking on and off
    chat_tokens: frozenset[int]  # ends of turns and other marks, which plain texts lack

    def __init__(
        self, target: str, *, revision: str | None = None, trust_remote_code: object = False
    ) -> None:
        arguments = {
            "target": target, "revision": revision or "main", "trusted": trust_remote_code is True,
            "seconds": SECONDS, "gib": GIB,
        }  # fmt: skip
        super().__init__(arguments, Path(os.devnull), name="tokenizer")
        self._remedy = "add its tokenizer files; bench also takes --dummy and --prompt-tokens"

    def __enter__(self) -> Tokenizer:
        super().__enter__()
        self.has_template, self.switch, marks = self.ask({"do": "describe"})
        self.chat_tokens = frozenset(marks)
        return self

    def ids(self, texts: Iterable[str], **how: Any) -> Iterator[list[int]]:
        """Yield the ids of each text; `how` are arguments of the process's own `ids`."""
        has_chat = how.get("switches") is not None
        self.name = "chat template" if has_chat else "tokenizer"
        self._remedy = "use shorter texts or another target" + ", or --no-chat-template" * has_chat
        batch: list[str] = []
        for text in texts:
            if batch and sum(map(len, batch)) + len(text) > _LETTERS:
                yield from self.ask({"do": "ids", "texts": batch, **how})
                batch = []
            batch.append(text)
        yield from self.ask({"do": "ids", "texts": batch, **how})

    def _failed(self, error: str) -> EagleExtError:
        status = self.process.poll() or 0
        problem = signal.Signals(-status).name if status < 0 else next(iter(error.splitlines()), "")
        return SpeculativeConfigError(
            field=f"{self.name} of the target", value=self.arguments["target"],
            allowed=f"one without errors that takes at most {SECONDS} s of processor time and {GIB} GiB",
            remedy=f"{self._remedy} ({problem})",
        )  # fmt: skip


class _Bounded:
    """Transformers' tokenizer, in the process."""

    COMMANDS: ClassVar[tuple[str, ...]] = ("describe", "ids")

    def __init__(self, arguments: dict[str, Any], _report: Callable[[int], None]) -> None:
        self.seconds = arguments["seconds"]
        if not arguments["trusted"]:
            sys.modules["torch"] = None  # type: ignore[assignment]  # takes seconds to import
        from transformers import AutoTokenizer

        _bound(resource.RLIMIT_CORE, 0)
        with suppress(OSError):  # no Linux
            used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
            _bound(resource.RLIMIT_DATA, used + int(arguments["gib"] * 2**30))
        self._begin()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(
            arguments["target"], revision=arguments["revision"], trust_remote_code=arguments["trusted"]
        )

    def _begin(self) -> None:
        _bound(resource.RLIMIT_CPU, math.ceil(time.process_time()) + self.seconds)

    def describe(self) -> list[Any]:
        """Return whether there is a chat template, its switch, and added tokens that are special, such
        as ends of turns, or stand in the template."""
        template = getattr(self.tokenizer, "chat_template", None)
        switch = next((name for name in SWITCHES if name in json.dumps(template)), None)
        added = getattr(self.tokenizer, "added_tokens_decoder", {}).items()
        marks = [id_ for id_, mark in added if mark.special or mark.content in str(template)]
        return [template is not None, switch, marks]

    def ids(
        self, texts: list[str], switches: dict[str, bool] | None = None, special: bool = True
    ) -> Any:
        """Tokenize texts: with `switches` of a chat template as a user's turn each."""
        self._begin()
        if switches is None:
            encode = self.tokenizer
            return encode(texts, add_special_tokens=special, verbose=False)["input_ids"] if texts else []
        how: dict[str, Any] = {"add_generation_prompt": True, "return_dict": True, **switches}
        turns = ([{"role": "user", "content": text}] for text in texts)
        return [self.tokenizer.apply_chat_template(turn, **how)["input_ids"] for turn in turns]


def _bound(kind: int, limit: int) -> None:
    resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))


if __name__ == "__main__":
    main(_Bounded)
