"""AUC, calibration error and keep rules on drafts whose answers are known, and the page made of them."""

from __future__ import annotations

import json
import math
import random

import pytest

from benchmarks import confidence_page
from benchmarks.calibration import (
    Draft,
    auc,
    ece,
    judged,
    keeps_first,
    keeps_own,
    keeps_product,
    outcome,
    products,
    reliability,
    rules_of,
    summary,
)
from benchmarks.confidence import against_fixed

K = 4


def calibrated_drafts(count, exponent=1.0):
    """Positions are accepted with probability p ** exponent: calibrated at 1."""
    draw = random.Random(0)
    drafts = []
    for _ in range(count):
        row = tuple(draw.random() for _ in range(K))
        accepted = 0
        while accepted < K and draw.random() < row[accepted] ** exponent:
            accepted += 1
        drafts.append(Draft(row, accepted))
    return drafts


def test_auc_by_hand():
    assert auc([(0.1, False), (0.2, False), (0.8, True)]) == 1
    assert auc([(0.1, True), (0.9, False)]) == 0
    assert auc([(0.5, True), (0.5, False)]) == 0.5
    # Of the four pairs one is in the wrong order and one is a tie.
    assert auc([(0.3, True), (0.9, True), (0.3, False), (0.4, False)]) == pytest.approx(2.5 / 4)
    assert math.isnan(auc([(0.5, True)]))


def test_auc_is_the_share_of_pairs():
    draw = random.Random(1)
    found = [(round(draw.random(), 1), draw.random() < 0.4) for _ in range(200)]
    rights, wrongs = ([p for p, right in found if right is side] for side in (True, False))
    pairs = [(a > b) + (a == b) / 2 for a in rights for b in wrongs]
    assert auc(found) == pytest.approx(sum(pairs) / len(pairs))


def test_ece_by_hand():
    assert ece([(0.25, True), (0.25, False), (0.25, False), (0.25, False)]) == pytest.approx(0)
    assert ece([(0.9, False), (0.1, False)]) == pytest.approx(0.5)
    assert ece([(0.9, True), (0.9, True), (0.3, False), (0.3, True)]) == pytest.approx(0.15)
    assert reliability([(1.0, True)]) == [{"probability": 1.0, "accepted": 1.0, "count": 1}]


def test_calibrated_drafts_are_calibrated_where_they_were_reached():
    drafts = calibrated_drafts(4000)
    assert ece(judged(drafts, reached=True)) < 0.03
    assert ece(judged(drafts, product=True)) < 0.03
    assert ece(judged(drafts)) > 0.2, "behind a rejection nothing is accepted"
    under = calibrated_drafts(4000, exponent=0.3)
    assert all(
        row["accepted"] > row["probability"] for row in reliability(judged(under, reached=True))[:8]
    )


def test_which_positions_are_judged():
    draft = Draft((0.5, 0.4, 0.3), 1)
    assert judged([draft]) == [(0.5, True), (0.4, False), (0.3, False)]
    assert judged([draft], reached=True) == [(0.5, True), (0.4, False)]
    assert [p for p, _ in judged([draft], product=True)] == pytest.approx([0.5, 0.2, 0.06])


def test_rules():
    row = (0.5, 0.4, 0.1, 0.9)
    assert products(row) == pytest.approx([0.5, 0.2, 0.02, 0.018])
    assert keeps_product(0.05)(row) == 2
    assert keeps_product(0.6)(row) == 0
    assert keeps_own(0.2)(row) == 2, "a rule cuts the tail: what follows is not kept"
    assert keeps_own(0.05)(row) == 4
    assert keeps_first(3)(row) == 3
    assert keeps_first(9)(row) == 4


def test_outcome_by_hand():
    drafts = [Draft((0.9, 0.9), 2), Draft((0.9, 0.1), 1), Draft((0.1, 0.9), 1)]
    assert outcome(drafts, keeps_first(2)) == {
        "rows": 1.0, "accepted": 1.0, "acceptance_length": 1 + 4 / 3,
    }  # fmt: skip
    cut = outcome(drafts, keeps_own(0.5))
    assert cut == pytest.approx({"rows": 3 / 6, "accepted": 3 / 4, "acceptance_length": 2})
    assert outcome([Draft((0.5,), 0)], keeps_first(0))["accepted"] == 1


def test_a_stricter_rule_keeps_less_of_both():
    drafts, rules = calibrated_drafts(500), rules_of(K)
    rows = [outcome(drafts, rules[f"running product >= {t:g}"]) for t in (0.02, 0.05, 0.1, 0.2)]
    for key in ("rows", "accepted", "acceptance_length"):
        figures = [row[key] for row in rows]
        assert figures == sorted(figures, reverse=True)
        assert len(set(figures)) == len(figures)
    assert [name for name in rules if name.startswith("fixed")] == [f"fixed K'={k}" for k in (1, 2, 3)]


def test_summary():
    drafts = calibrated_drafts(300)
    found = json.loads(json.dumps(summary(drafts)))
    assert found["k"] == K
    assert found["drafts"] == 300
    assert found["acceptance_length"] == pytest.approx(1 + sum(found["accepted_per_position"]))
    assert found["rules"]["all"]["rows"] == 1
    assert sum(row["count"] for row in found["curves"]["all"]["bins"]) == 300 * K


@pytest.mark.parametrize("drafts", [[], [Draft((0.5,), 0), Draft((0.5, 0.5), 1)]], ids=["none", "two K"])
def test_drafts_that_tell_nothing_are_refused(drafts):
    with pytest.raises(ValueError, match="all of one K"):
        summary(drafts)


def test_the_best_fixed_length_is_that_of_the_medians():
    rates = {"K=0": [9, 9, 9], "K=1": [1, 2, 99], "K=3": [4, 5, 4], "cut-off": [4, 6, 6]}
    drafting, any_k = against_fixed(rates, 1), against_fixed(rates, 0)
    assert (drafting["best"], any_k["best"]) == ("K=3", "K=0")
    assert drafting["ratio"] == pytest.approx(1.2)
    assert any_k["ratio"] == pytest.approx(6 / 9)


def test_the_picture(tmp_path):
    from PIL import Image

    found = {"pair": "dense", "command": "made up", **summary(calibrated_drafts(300))}
    confidence_page.draw(found, file := tmp_path / "calibration.png")
    with Image.open(file) as picture:
        assert min(picture.size) > 400
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 50
        assert picture.info["Description"] == "made up"


def test_the_page_is_what_its_results_say(tmp_path, monkeypatch):
    """What is committed, made again; `PICTURES` elsewhere."""
    page = tmp_path / "confidence.md"
    page.write_text(committed := confidence_page.PAGE.read_text())
    monkeypatch.setattr(confidence_page, "PAGE", page)
    monkeypatch.setattr(confidence_page, "PICTURES", tmp_path)
    confidence_page.write_page()
    assert page.read_text() == committed
    for pair in confidence_page.results():
        assert (tmp_path / f"calibration_{pair}.png").exists()


def test_a_page_without_a_place_is_refused():
    page = "<!-- a:begin -->\nold\n<!-- a:end -->\n"
    assert confidence_page.filled(page, {"a": "new"}) == page.replace("old", "new")
    with pytest.raises(SystemExit, match="no place for b"):
        confidence_page.filled(page, {"b": "new"})
