"""Drafts are written once per session, the peers' chains computed once per draft and text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.engine import ROOT

COLUMNS = ("check", "reference", "engine")


@pytest.fixture(scope="session", autouse=True)
def in_the_root():
    """Configs name the target by its path in the repository."""
    before = Path.cwd()
    os.chdir(ROOT)
    yield
    os.chdir(before)


class Said:
    """What was found of each row, for the table."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, str]] = {}

    def __call__(self, row: object, column: str, text: str) -> None:
        self.rows.setdefault(str(row), {})[column] = text


_SAID = pytest.StashKey[Said]()


@pytest.fixture(scope="session")
def said(pytestconfig) -> Said:
    return pytestconfig.stash.setdefault(_SAID, Said())


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Row -> the folder of its draft; skips what cannot be had."""
    from tests.peers.available import missing

    folders: dict[str, Path] = {}

    def write(row) -> Path:
        for peer in row.peers:
            if reason := missing(peer):
                pytest.skip(reason)
        if row.name not in folders:
            folders[row.name] = row.write(tmp_path_factory.mktemp("draft") / "draft")
        return folders[row.name]

    return write


@pytest.fixture(scope="session")
def peers_chains(written):
    """Row, text -> what the peer's own forward drafts."""
    found: dict[tuple[str, tuple[int, ...]], object] = {}

    def chains(row, text):
        if (row.name, text) not in found:
            found[row.name, text] = row.draft(written(row), text, row.target)
        return found[row.name, text]

    return chains


def pytest_terminal_summary(terminalreporter, config) -> None:
    said = config.stash.get(_SAID, None)
    if said is None:
        return
    from tests.peers.rows import NOT_COMPARED

    write = terminalreporter.write_line
    terminalreporter.section("peers: what was compared")
    width = max(map(len, said.rows), default=0)
    for row, found in said.rows.items():
        cells = [f"{column}: {found[column]}" for column in COLUMNS if column in found]
        write(f"{row:<{width}}  {'; '.join(cells)}")
    terminalreporter.section("peers: what was not, and why")
    skipped: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        skipped[reason] = skipped.get(reason, 0) + 1
    for reason, count in skipped.items():
        write(f"{count} tests: {reason.removeprefix('Skipped: ')}")
    for name, reason in NOT_COMPARED.items():
        write(f"{name}: {reason}")
