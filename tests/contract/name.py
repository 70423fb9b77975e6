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

    @property
    def id(self) -> str:
        return f"{self.module}:{self.name}"
