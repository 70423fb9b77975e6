# SPDX-License-Identifier: Apache-2.0
"""Starts an engine's process, asks it, and ends it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

from vllm_eagle_ext.errors import EagleExtError, SpeculativeConfigError
from vllm_eagle_ext.measure.engine.load import Answer, Load, Measured, StepLoad, TimedSteps
from vllm_eagle_ext.options import KEY
from vllm_eagle_ext.start.failed_start import cause_of

OURS = "eagle_ext"  # this package's entry point
PROBE = "vllm_eagle_ext.measure.engine.probe.StepProbe"  # for worker_extension_cls
_STOP_S, _STOP_AT_ONCE_S = 60, 5  # `docker stop` waits 10
_TAIL = 25  # lines of a log in a message
# The commands decide these by options of their own, or need them as they are.
_RESERVED = (
    "model", "speculative_config", "worker_extension_cls", "disable_log_stats", "logprobs_mode",
    "per_request_spec_decode_metrics",
)  # fmt: skip

# Keywords of LLM() that this package, too, reads or judges the truth of; which numbers, is for vLLM.
_TYPES: Mapping[type, tuple[str, tuple[str, ...]]] = {
    bool: ("true or false", (
        "trust_remote_code", "enable_lora", "enable_dbo", "enforce_eager", "enable_prefix_caching",
        "disable_hybrid_kv_cache_manager", "enable_prompt_embeds",
    )),
    int: ("a whole number", ("max_model_len", "max_num_seqs", "kv_cache_memory_bytes")),
    str: ("text", ("revision", "tokenizer_revision", "download_dir")),
}  # fmt: skip


class EngineFailedError(EagleExtError):
    """An engine did not start, or not reach the end of what was asked of it."""


class EngineProcess:
    """Use as a context manager; entering waits until the engine has started.

    Args:
        arguments: keywords of vLLM's LLM().
        plugin: False starts vLLM as it is without this package.

    Raises:
        EngineFailedError: with the engine's own error and the end of its log.
    """

    PROGRAM: ClassVar[str] = "vllm_eagle_ext.measure.engine.process"  # a module

    def __init__(
        self, arguments: Mapping[str, Any], log: Path, *, name: str = "the engine", plugin: bool = True
    ) -> None:
        self.arguments, self.log, self.name = dict(arguments), log, name
        self.environment = _environment(plugin=plugin)

    def __enter__(self) -> EngineProcess:
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", self.PROGRAM],
                env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, bufsize=1, start_new_session=True,
            )  # fmt: skip
        try:
            self.ask(self.arguments)
        except BaseException:
            self._end(at_once=True)
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(at_once=kind is not None)

    def load(self, load: Load, progress: Callable[[int], None] | None = None) -> Measured:
        """Decode a load; `progress` is called with the number of requests that have ended."""
        said = self.ask({"do": "load", **asdict(load)}, progress)
        return Measured(said["seconds"], [Answer(**answer) for answer in said["answers"]])

    def steps(self, load: StepLoad) -> TimedSteps:
        """Time decode steps of requests that decode together."""
        return TimedSteps(**self.ask({"do": "steps", **asdict(load)}))

    def logprobs(self, prompts: Sequence[Sequence[int]], top: int) -> list[dict[int, float]]:
        """Return the `top` likeliest next tokens of each prompt at temperature 1, and their logprobs."""
        rows = self.ask({"do": "logprobs", "prompts": [list(each) for each in prompts], "top": top})
        return [{int(token): logprob for token, logprob in row.items()} for row in rows]

    def rpc(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every worker's extension."""
        results: list[Any] = self.ask({"do": "rpc", "method": method, "arguments": list(arguments)})
        return results

    def ask(self, command: Mapping[str, Any], progress: Callable[[int], None] | None = None) -> Any:
        """Send a command of the program, and return its result."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the next read finds the end, and says it
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        for line in self.process.stdout:
            answer = json.loads(line)
            if "result" in answer:
                return answer["result"]
            if "error" in answer:
                raise self._failed(answer["error"])
            if progress is not None:
                progress(answer["progress"])
        raise self._failed(f"exit status {self.process.wait()}")

    def _failed(self, error: str) -> EagleExtError:
        lines = self.log.read_text(errors="replace").splitlines()
        cause, end = cause_of(error, lines)
        return EngineFailedError(
            field=self.name,
            value=cause,
            allowed="an engine that starts and decodes the prompts",
            remedy=f"see the end of its log, {self.log}:",
            more=lines[max(0, end - _TAIL) : end],
        )

    def _end(self, *, at_once: bool) -> None:
        """End the process; `at_once` ends it whatever it is doing."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()  # its loop ends, and vLLM ends its own children
        try:
            if at_once:
                self._signal(signal.SIGTERM)
            self.process.wait(_STOP_AT_ONCE_S if at_once else _STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal(signal.SIGKILL)  # whatever is left of its session
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def _environment(*, plugin: bool) -> dict[str, str]:
    """Return the environment with this package among the plugins that vLLM loads, or without it."""
    given = os.environ.get("VLLM_PLUGINS")  # None: all that are installed
    if plugin and given is None:
        return dict(os.environ)
    groups = [group for group in entry_points().groups if group.startswith("vllm.")]
    installed = [entry.name for group in groups for entry in entry_points(group=group)]
    names = given.split(",") if given is not None else installed
    others = dict.fromkeys(name for name in names if name not in ("", OURS))
    return {**os.environ, "VLLM_PLUGINS": ",".join([*others, *[OURS] * plugin])}


def refuse_reserved(engine: Mapping[str, Any]) -> None:
    """Refuse keywords in the value of --engine that are not the user's to give there, and other types.

    Raises:
        SpeculativeConfigError: there are some; the message names them.
    """
    if taken := [name for name in _RESERVED if name in engine]:
        raise SpeculativeConfigError(
            field="--engine", value=taken,
            allowed="other arguments of LLM() than " + ", ".join(_RESERVED),
            remedy="use the command's options for target, draft, K, method and --eagle-ext",
        )  # fmt: skip
    additional = engine.get("additional_config")
    if additional is not None and (not isinstance(additional, Mapping) or KEY in additional):
        raise SpeculativeConfigError(
            field="--engine: additional_config", value=additional,
            allowed=f"an object with keys of other plugins than {KEY}",
            remedy="give the options of this package with --eagle-ext",
        )  # fmt: skip
    for kind, (allowed, names) in _TYPES.items():
        for name in names:
            if type(value := engine.get(name)) not in (kind, type(None)):
                raise SpeculativeConfigError(
                    field=f"--engine: {name}", value=value, allowed=allowed,
                    remedy="write it so, or leave it out for vLLM's default",
                )  # fmt: skip
