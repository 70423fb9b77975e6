"""python -m tests.promises: what the README promises, and the tests in `make test` that prove it.

A test says so by `@pytest.mark.promise("..")`, of one set of parameters by `@pytest.mark.promise("..",
id="..")`. tests/conftest.py refuses a promise that no test of `make test` proves.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence

import pytest

LONGER = ("full", "long", "peers")  # markers that take a test out of `make test`


def promises_of(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """What this item is said to prove, and its name, with parameters if they alone prove it."""
    parameters = getattr(item, "callspec", None)
    for marker in item.iter_markers("promise"):
        if "id" not in marker.kwargs:
            yield marker.args[0], item.nodeid.partition("[")[0]
        elif parameters and marker.kwargs["id"] == parameters.id:
            yield marker.args[0], item.nodeid


def is_in_make_test(item: pytest.Item) -> bool:
    return not any(item.get_closest_marker(name) for name in LONGER)


def unproven(items: Sequence[pytest.Item]) -> list[str]:
    """Promises that no item proves in `make test`, those with an id that no item has among them."""
    made = {marker.args[0] for item in items for marker in item.iter_markers("promise")}
    proven = {promise for item in items if is_in_make_test(item) for promise, _ in promises_of(item)}
    return sorted(made - proven)


def table(items: Sequence[pytest.Item]) -> str:
    """A row per promise; of several tests their file."""
    rows: dict[str, set[str]] = {}
    for item in items:
        for promise, test in promises_of(item) if is_in_make_test(item) else ():
            rows.setdefault(promise, set()).add(test)
    lines = ["| promise | test in `make test` |", "|---|---|"]
    for promise, tests in sorted(rows.items(), key=lambda row: min(row[1])):
        test, *others = sorted(tests)
        lines.append(f"| {promise} | `{test.partition('::')[0] if others else test}` |")
    return "\n".join(lines)


class _Collected:
    """A plugin of pytest's that keeps what was collected."""

    items: Sequence[pytest.Item] = ()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def main() -> int:
    collected = _Collected()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        folders = ("tests/unit", "tests/contract", "tests/e2e")
        status = pytest.main(["--collect-only", "-qq", *folders], plugins=[collected])
    print(said.getvalue() if status else table(collected.items))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
