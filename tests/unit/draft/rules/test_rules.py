"""Every rule, by a valid draft of which one thing is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.drafts import FAMILIES, VLLMS, inspect, valid_draft
from tests.unit.draft.rules.broken import inspect_broken, names
from tests.unit.draft.rules.cases import CASES
from vllm_eagle_ext.draft import Severity
from vllm_eagle_ext.draft.rules import every_rule


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_valid_draft_has_no_finding(tmp_path, family, seed):
    runner = "v2" if family in VLLMS else "v1"
    assert inspect(valid_draft(family, seed), tmp_path, engine={"runner": runner}).findings == ()


@pytest.mark.promise("depth-gated MLPs are refused", id="architecture_is_served-gated_by_depth")
@pytest.mark.promise(
    "DFlash with windowed and full layers mixed on V1 is refused",
    id="runner_serves_it-mixed_windows_on_v1",
)
@pytest.mark.promise("drafts without aux states on V2 are refused", id="runner_serves_it-no_aux_on_v2")
@pytest.mark.promise("P-EAGLE on V2 is refused", id="runner_serves_it-parallel_on_v2")
@pytest.mark.parametrize("broken", CASES)
def test_rule_fires_alone_and_says_why(tmp_path, broken):
    inspection = inspect_broken(broken, tmp_path)
    fired = [finding for finding in inspection.findings if finding.rule == broken.rule]
    assert fired, names(inspection.findings)
    text = "\n".join(str(finding.problem) for finding in fired)
    for word in broken.words:
        assert word in text
    own = {finding.rule for finding in fired if finding.severity == Severity.ERROR}
    assert names(inspection.errors) == own | broken.others


@pytest.mark.parametrize("broken", CASES)
def test_strict_false_makes_warnings_of_what_can_run(tmp_path, broken):
    strict = inspect_broken(broken, tmp_path)
    relaxed = inspect_broken(broken, tmp_path, strict=False)
    assert (relaxed.case is None) is (strict.case is None)
    if relaxed.case is not None and strict.case is not None:
        assert replace(relaxed.case, request=strict.case.request) == strict.case
    for before, after in zip(strict.findings, relaxed.findings, strict=True):
        runs = before.severity == Severity.ERROR and before.can_run
        assert after == (replace(before, severity=Severity.WARNING) if runs else before)


# Formats that no small valid draft has: test_quantisation.py. Values: start/check/test_weights.py.
# A target in the draft's place: start/check/test_folded.py.
WITH_TESTS_OF_THEIR_OWN = {
    "draft_is_no_plain_model", "gated_rows_can_be_moved", "gptq_settings_are_shared",
    "markov_candidates_are_plain", "qweights_fit",
}  # fmt: skip


def test_every_rule_has_a_case():
    with_a_case = {param.values[0].rule for param in CASES}
    registered = {rule.name for rule in every_rule()}
    assert with_a_case == registered - WITH_TESTS_OF_THEIR_OWN, "cases/ has a broken draft for each rule"
