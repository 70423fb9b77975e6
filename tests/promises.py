"""python -m tests.promises [--write]: what the README promises, and the tests that prove it.

It prints the promises that need an engine by model runner and release of vLLM, and the test of each
promise in `make test`. `--write` puts the first table into docs/dev/evidence.md.

A test says so by `@pytest.mark.promise("..")`, of one set of parameters by `@pytest.mark.promise("..",
id="..")`. tests/conftest.py refuses a promise that no test of `make test` proves.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/dev/evidence.md"
BEGIN, END = "<!-- runners:begin -->", "<!-- runners:end -->"
# By a word of what is shown: why a column is empty.
NOT_SHOWN = {
    "`vllm serve`": "alike", "a server": "alike", "metrics": "alike", "sampled drafts": "no kernel",
    "P-EAGLE": "refused", "no target layers": "refused",
}  # fmt: skip
COLUMNS = ("V1, 0.32", "V2, 0.32", "V2, 0.33", "a GPU")
ON_CPUS = COLUMNS[:-1]
NOWHERE = ("pipeline stages: text",)  # README says that these work, too
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


def shown_by(items: Sequence[pytest.Item]) -> dict[str, dict[str, str]]:
    """A file of tests by promise and column, of promises that an engine shows."""
    in_short = _files("SHORT_033")
    on_033 = in_short | _files("ENGINES_033") | _files("V2_033")
    found: dict[str, dict[str, set[str]]] = {}
    for item in items:
        if item.get_closest_marker("e2e") is None or item.get_closest_marker("gpu") is not None:
            continue
        runner, name = "V2" if item.get_closest_marker("v2") else "V1", item.path.name
        releases = ("0.32", "0.33") if runner == "V2" and name in on_033 else ("0.32",)
        columns = {promise: releases for promise, _ in promises_of(item)}
        columns |= {m.args[0]: m.kwargs.get("releases", releases) for m in _shows(item)}
        for text, run in columns.items():
            for release in run:
                found.setdefault(text, {}).setdefault(f"{runner}, {release}", set()).add(name)
    return {
        promise: {
            column: min(names, key=lambda name: (name not in in_short, name))
            for column, names in of.items()
        }
        for promise, of in found.items()
    }


def _shows(item: pytest.Item) -> Iterator[pytest.Mark]:
    """Its markers, those of one set of parameters only if it has these."""
    parameters = getattr(item, "callspec", None)
    for marker in item.iter_markers("shows"):
        if "id" not in marker.kwargs or (parameters and marker.kwargs["id"] == parameters.id):
            yield marker


def by_runner(items: Sequence[pytest.Item]) -> str:
    """The table of docs/dev/evidence.md, without spaces that nobody reads."""
    rows = [f"|promise|{'|'.join(COLUMNS)}|", "|" + "---|" * (1 + len(COLUMNS))]
    for promise, shown in sorted((dict.fromkeys(NOWHERE, {}) | shown_by(items)).items()):
        why = next((why for word, why in NOT_SHOWN.items() if word in promise), "-")
        cells = [f"`{shown[column]}`" if column in shown else why for column in ON_CPUS] + ["-"]
        rows.append(f"|{promise}|{'|'.join(cells)}|")
    return "\n".join(rows)


def _files(variable: str) -> set[str]:
    """Names of test files in a variable of the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (listed,) = re.findall(
        rf"^{variable} := .*?\$\(addprefix tests/e2e/test_,([^)]*)\)", text, re.MULTILINE
    )
    return {f"test_{name}" for name in listed.replace("\\", "").split()}


class _Collected:
    """A plugin of pytest's that keeps what was collected."""

    items: Sequence[pytest.Item] = ()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def collect() -> tuple[Sequence[pytest.Item], str]:
    """All tests, and what pytest said where it could not collect them."""
    collected = _Collected()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        folders = ("tests/unit", "tests/contract", "tests/e2e")
        status = pytest.main(["--collect-only", "-qq", *folders], plugins=[collected])
    return collected.items, said.getvalue() if status else ""


def page_with(shown: str) -> str:
    """The page with the table between its marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{shown}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    items, failed = collect()
    if "--write" in sys.argv[1:] and not failed:
        PAGE.write_text(page_with(by_runner(items)), encoding="utf-8")
    print(failed or f"{by_runner(items)}\n\n{table(items)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
