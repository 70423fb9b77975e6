# SPDX-License-Identifier: Apache-2.0
"""Says what the package refuses: field, value, what is allowed, what to do.

EagleExtError(ValueError)
    HybridStateError          a configuration in which recurrent states cannot be kept as asked
    OptionsError              a key or value of `additional_config.eagle_ext`
    SpeculativeConfigError    a key or value of `speculative_config`
    UnsupportedDraftError     a draft checkpoint that would not draft what it was trained to draft
        GgufDraftError        a draft in a GGUF file, which another plugin may serve
    UnsupportedTargetError    a target that cannot feed a draft, or whose states cannot be planned
    UnsupportedVllmError      a draft that needs this package on a vLLM it has not been tested with
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from vllm_eagle_ext.printable import shown


def sentence(field: str, value: object) -> str:
    """Make the sentence that a message begins with: `field is value`."""
    field = shown(field)
    subject = re.split(r" (?:of|that|at|in) ", field)[0]
    last = subject.rpartition(" ")[2]
    is_plural = " and " in subject or (last.isalpha() and last.endswith("s") and last[-2:] != "ss")
    text = "missing" if value is None else shown(repr(value))
    return f"{field} {'are' if is_plural else 'is'} {text}"


class EagleExtError(ValueError):
    """Refuses something. The parts are kept as attributes; the message is all of them.

    Args:
        more: further lines.
    """

    def __init__(
        self, *, field: str, value: object, allowed: str, remedy: str, more: Sequence[str] = ()
    ) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        self.remedy = remedy
        self.more = tuple(more)
        first = f"{sentence(field, value)}. Allowed: {shown(allowed)}. What to do: {shown(remedy)}"
        super().__init__("\n  ".join([f"vllm-eagle-ext: {first}", *map(shown, self.more)]))

    def __reduce__(self) -> tuple[object, ...]:
        parts = {name: getattr(self, name) for name in ("field", "value", "allowed", "remedy", "more")}
        return _rebuild, (type(self), parts)


def _rebuild(error: type[EagleExtError], parts: dict[str, Any]) -> EagleExtError:
    """Make an error again: keyword-only parts must survive pickling between vLLM's processes."""
    return error(**parts)


class HybridStateError(EagleExtError):
    pass


class OptionsError(EagleExtError):
    pass


class SpeculativeConfigError(EagleExtError):
    pass


class UnsupportedDraftError(EagleExtError):
    pass


class GgufDraftError(UnsupportedDraftError):
    pass


class UnsupportedTargetError(EagleExtError):
    pass


class UnsupportedVllmError(EagleExtError):
    pass
