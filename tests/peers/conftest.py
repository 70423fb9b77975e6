"""Drafts are written once per session, the peers' chains computed once per draft and text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.engine import ROOT


@pytest.fixture(scope="session", autouse=True)
def in_the_root():
    """Configs name the target by its path in the repository."""
    before = Path.cwd()
    os.chdir(ROOT)
    yield
    os.chdir(before)


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
    cache: dict[tuple[str, tuple[int, ...]], object] = {}

    def chains(row, text):
        if (row.name, text) not in cache:
            cache[row.name, text] = row.draft(written(row), text, row.target)
        return cache[row.name, text]

    return chains
