"""One name of vLLM's that we lean on."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version


@dataclass(frozen=True)
class Name:
    module: str
    name: str  # a class, function or class.method
    why: str
    parameters: tuple[str, ...] | None = None  # exactly these, in this order
    accepts: tuple[str, ...] = ()  # at least these
    contains: tuple[str, ...] = ()  # in its body, as `ast.unparse` writes it
    optional: bool = False  # every parameter may be left out
    until: str | None = None  # from this release on it is otherwise, and what leans on it does without
    since: str | None = None  # an earlier release has it not, or otherwise
    moved_to: str | None = None  # module of a later release, which only tests import

    @property
    def id(self) -> str:
        return f"{self.module}:{self.name}"

    @property
    def modules(self) -> tuple[str, ...]:
        """Where the name may stand, in the order of releases."""
        return (self.module, self.moved_to) if self.moved_to else (self.module,)

    def holds_in(self, release: str) -> bool:
        asked = Version(Version(release).base_version)  # a candidate counts as its release
        return not (
            (self.until and asked >= Version(self.until)) or (self.since and asked < Version(self.since))
        )
