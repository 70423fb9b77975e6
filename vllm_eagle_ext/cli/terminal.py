# SPDX-License-Identifier: Apache-2.0
"""What several commands share: what they need, how they print, fail and read JSON."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from vllm_eagle_ext.printable import printable
from vllm_eagle_ext.version import INSTALL_VLLM

CANNOT_READ = 2
MOST = 2**31 - 1  # of any number of things
SCHEMA = 1  # of what --json prints; a key that goes or changes its meaning raises it
_ENDS = (signal.SIGTERM, signal.SIGHUP)  # of `timeout`, `docker stop` and a closed terminal
_UsageError: Any = typer.BadParameter.__mro__[1]  # typer exports it under no name
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
_WIDE = 1000  # columns of a pipe
_BRIEF = 400  # characters of another library's error


_KINDS = {
    "DRAFT": "draft", "TARGET": "target", "FOLDER": "download_dir", "FILE": "out prompts texts",
    "JSON": "engine speculative eagle_ext",
}  # fmt: skip
_OF_TYPES = {int: "N", float: "X", str: "TEXT"}
_SECTIONS = {
    "Draft and target": "target k method revision target_revision download_dir speculative eagle_ext",
    "vLLM": "vllm platform tp engine max_model_len max_num_seqs gpu_memory_utilization prefix_caching "
    "kv_cache_dtype gdn_prefill",
    "Options": "",
    "Output": "everything as_json out force help",
}
_MANY = 10  # options, which need sections


def _of(name: str, table: Mapping[str, str], other: str) -> str:
    return next((title for title, names in table.items() if name in names.split()), other)


def _is_argument(each: Any) -> bool:
    return bool(each.param_type_name == "argument")


class Command(TyperCommand):
    """Names the kinds of values, and lists many options in sections, as rich's panels cut names."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        params: list[Any] = self.params
        for each in params:
            kind = _OF_TYPES.get(each.type_descriptor.annotation, "")
            named = each.name.upper() if _is_argument(each) else _of(each.name, _KINDS, kind)
            if not getattr(each, "is_flag", False):
                each.metavar = each.metavar or named or None

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections = _SECTIONS if len(self.params) > _MANY else {"Options": ""}
        listed: dict[str, Any] = {title: [] for title in ("Arguments", *sections)}
        for each in self.get_params(ctx):
            title = "Arguments" if _is_argument(each) else _of(str(each.name), sections, "Options")
            if record := each.get_help_record(ctx):
                name = record[0].partition(" <")[0] if _is_argument(each) else record[0]
                listed[title].append((name, record[1]))
        for title in filter(listed.get, listed):
            with formatter.section(title):
                formatter.write_dl(listed[title])


class Group(TyperGroup):
    """Ends a command as it should: where it is stopped, typed wrongly, or its output has no room."""

    def resolve_command(self, context: Any, words: list[str]) -> Any:
        context.meta["words"] = tuple(words)
        for before, given in pairwise(["", *words]):
            if not given or (given[:2] == "--" and given[-1] == "="):  # a name: the working folder's
                last = given.rstrip("=") or before
                raise typer.BadParameter(f"what follows {last!r} is empty: give it a name")
        return super().resolve_command(context, words)

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except _UsageError as error:
            if "--json" not in context.meta.get("words", ()):
                raise
            fail(error.format_message(), as_json=True)

    def main(self, *args: Any, **given: Any) -> Any:
        if not os.environ.get("COLUMNS", "80").strip("0"):
            del os.environ["COLUMNS"]  # on no columns rich prints nothing
        ours = _interrupt_on_signals()
        try:
            try:
                return super().main(*args, **given)
            finally:
                for number in ours:
                    signal.signal(number, signal.SIG_DFL)
                sys.stdout.flush()
        except OSError as error:
            if error.errno not in _NO_ROOM or error.filename is not None:  # not of the output
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())  # what is left there is written at the exit
            said = f"vllm-eagle-ext: the output cannot be written: {printable(str(error))}\n"
            with suppress(OSError):  # of a terminal that has been closed
                sys.stderr.write(said)
            sys.exit(CANNOT_READ)


def _interrupt_on_signals() -> list[signal.Signals]:
    """End on these signals as on Ctrl-C, and ignore further ones meanwhile; return those that do it."""

    def interrupt(*_: object) -> None:
        while ours:
            signal.signal(ours.pop(), signal.SIG_IGN)
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    ours = [end for end in _ENDS if is_main and signal.getsignal(end) is signal.SIG_DFL]  # no nohup
    for number in ours:
        signal.signal(number, interrupt)
    return ours


def json_text(fields: Mapping[str, Any], exit_code: int, indent: int | None = 1) -> str:
    """Write what --json prints."""
    return json.dumps({"schema_version": SCHEMA, **fields, "exit_code": exit_code}, indent=indent)


def fail(message: str, *, as_json: bool = False) -> NoReturn:
    if as_json:
        typer.echo(json_text({"error": message}, CANNOT_READ, indent=None))
    else:
        shown = console(stderr=True)
        for line in message.split("\n"):
            shown.print(line)
    raise typer.Exit(CANNOT_READ)


def write_out(out: Path | None, text: str) -> None:
    from vllm_eagle_ext.measure.outputs import write_whole

    try:
        if out is not None:
            write_whole(out, text)
    except OSError as error:
        fail(f"--out cannot be written: {error}")


def require_engine(*, as_json: bool = False) -> None:
    """End a command that starts engines or runs kernels where they cannot be imported."""
    missing = [package for package in ("vllm", "torch") if find_spec(package) is None]
    if missing:
        fail(f"This command needs {' and '.join(missing)}. {INSTALL_VLLM}", as_json=as_json)
    try:
        import vllm  # noqa: F401
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what a broken installation raises differs
        fail(cannot_import(error), as_json=as_json)


def cannot_import(error: BaseException) -> str:
    """Say that vLLM is broken, and what to do."""
    cause = printable(" ".join(f"{type(error).__name__}: {error}".split())[:_BRIEF])
    return f"vLLM cannot be imported ({cause}). {INSTALL_VLLM}"


def json_object(text: str, hint: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise typer.BadParameter("a JSON object is needed", param_hint=hint)
    return given


def numbers(text: str, hint: str) -> list[int]:
    try:
        given = [int(part) for part in text.split(",")]
    except ValueError:
        given = []
    if not given or min(given) < 1 or max(given) > MOST:
        raise typer.BadParameter("whole numbers above 0 with commas between", param_hint=hint)
    return given


def console(*, stderr: bool = False) -> Console:
    shown = _Plain(stderr=stderr, soft_wrap=True, highlight=False, emoji=False, markup=False)
    if not shown.is_terminal and "COLUMNS" not in os.environ:
        shown.width = _WIDE
    return shown


class _Plain(Console):
    """Shows each str on one line, in a table too, and escapes what would act on the terminal.

    In a pipe no table is wrapped, unless COLUMNS says where, and no line ends in blanks.
    """

    def print(self, *objects: Any, **given: Any) -> None:
        if self.is_terminal:
            return super().print(*objects, **given)
        with self.capture() as kept:
            super().print(*objects, **given)
        self.file.write(re.sub(" +$", "", kept.get(), flags=re.MULTILINE))
        return self.file.flush()

    def render_str(self, text: str, **given: Any) -> Text:
        return super().render_str(printable(text), **given)
