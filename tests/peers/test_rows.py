"""Every row: `check` says what it must, and the reference drafts as the peer does."""

from __future__ import annotations

import functools
import operator

import pytest

from tests.peers.chains import compare
from tests.peers.ours import checked, drafted
from tests.peers.rows import ROWS
from tests.peers.texts import texts

pytestmark = pytest.mark.peers

COMPARED = [row for row in ROWS if row.draft and not row.refused]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check(row, written):
    result = checked(written(row), row.target, row.options)
    errors = [str(finding.problem) for finding in result.inspection.errors]
    warnings = {f.rule for f in result.inspection.findings if f.severity == "warning"}
    if row.refused:
        assert len(errors) == 1, errors
        assert all(word in errors[0] for word in row.refused)
        return
    assert errors == []
    assert warnings == row.warnings


@pytest.mark.parametrize("row", COMPARED, ids=str)
def test_reference(row, written, peers_chains):
    folder = written(row)
    spec = checked(folder, row.target, row.options).inspection.spec
    assert spec is not None
    compared = []
    for text in texts(row.target):
        peer = peers_chains(row, text)
        own = drafted(spec, folder, text, row.target, peer.ids.shape[1])
        compared.append(compare(peer, own, chained=row.chained))
    total = functools.reduce(operator.add, compared)
    assert total.is_same, total
