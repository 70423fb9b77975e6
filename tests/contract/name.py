"""One name of vLLM's that we lean on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Name:
    module: str
    name: str  # a class, function or class.method
    why: str
    parameters: tuple[str, ...] | None = None  # exactly these, in this order
    accepts: tuple[str, ...] = ()  # at least these
    contains: tuple[str, ...] = ()  # in its body, as `ast.unparse` writes it
    moved_to: str | None = None  # module of a later release that we read and do not import

    @property
    def id(self) -> str:
        return f"{self.module}:{self.name}"
