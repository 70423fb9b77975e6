# SPDX-License-Identifier: Apache-2.0
"""The folder of a command that measures: its settings, what it ran on, and records line by line.

A folder that holds the same settings is gone on in. A line that was cut off, by a command that was
killed, is left out and dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from vllm_eagle_ext.errors import SpeculativeConfigError


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Context(Record):
    """What it ran on."""

    command: str
    started: str  # ISO 8601, UTC
    versions: dict[str, str]
    device: str
    environment: dict[str, str]  # VLLM_*, OMP_*, CUDA_VISIBLE_DEVICES
    cores: int | None = None
    load_average: float | None = None  # of one minute, before the first engine


_Record = TypeVar("_Record", bound=Record)
_Settings = TypeVar("_Settings", bound=Record)


class RunFolder(Generic[_Settings]):
    """A folder that one command began, and may go on in. A subclass names the command and its files."""

    COMMAND: ClassVar[str]  # of `vllm-eagle`
    HEADER: ClassVar[str]  # the file of settings and context
    LINES: ClassVar[tuple[str, ...]]  # files with a record a line
    SETTINGS_RECORD: ClassVar[type[Record]]

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, settings: _Settings, context: Context) -> None:
        """Start in the folder, or go on where it holds the same settings.

        Raises:
            SpeculativeConfigError: it holds something else.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / self.HEADER
        if file.exists():
            self._same(self.settings(), settings, self.SETTINGS_RECORD.model_fields)
            self._same(self.context(), context, ("versions", "device", "environment"))
            self._drop_cut_lines()
            return
        written = {"settings": settings.model_dump(), "context": context.model_dump()}
        whole = file.with_suffix(".part")
        whole.write_text(json.dumps(written, indent=1) + "\n")
        whole.replace(file)

    def settings(self) -> _Settings:
        text = json.dumps(self._header().get("settings"))
        return cast(_Settings, self._valid(self.SETTINGS_RECORD, text, self.HEADER))

    def context(self) -> Context:
        return self._valid(Context, json.dumps(self._header().get("context")), self.HEADER)

    def write(self, name: str, record: Record) -> None:
        with (self.path / name).open("a") as file:
            file.write(record.model_dump_json() + "\n")

    def read(self, name: str, kind: type[_Record]) -> list[_Record]:
        file = self.path / name
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [self._valid(kind, line, name) for line in lines if line.endswith("\n")]

    def _header(self) -> dict[str, Any]:
        """What the header holds.

        Raises:
            SpeculativeConfigError: there is none.
        """
        file = self.path / self.HEADER
        try:
            found: dict[str, Any] = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise SpeculativeConfigError(
                field=f"the folder of a {self.COMMAND}", value=str(self.path),
                allowed=f"one with {self.HEADER}",
                remedy=f"name the --out of an earlier `vllm-eagle {self.COMMAND}` ({error})",
            ) from None  # fmt: skip
        return found

    def _valid(self, kind: type[_Record], text: str, name: str) -> _Record:
        """The record that a line holds.

        Raises:
            SpeculativeConfigError: it is of another release, or damaged.
        """
        try:
            return kind.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            raise SpeculativeConfigError(
                field=f"{self.path / name}: {'.'.join(map(str, first['loc']))}", value=first["type"],
                allowed=f"what this release writes ({first['msg']})",
                remedy="measure again into another folder",
            ) from None  # fmt: skip

    def _drop_cut_lines(self) -> None:
        for name in self.LINES:
            file = self.path / name
            if file.exists() and not (text := file.read_text()).endswith("\n"):
                file.write_text(text[: text.rfind("\n") + 1])

    def _same(self, found: Record, wanted: Record, names: Iterable[str]) -> None:
        for name in names:
            here, there = getattr(wanted, name), getattr(found, name)
            if here != there:
                raise SpeculativeConfigError(
                    field=f"--out {self.path}: {name}", value=here, allowed=f"{there}, as it began",
                    remedy="name another folder, or go on with what it began with",
                )  # fmt: skip
