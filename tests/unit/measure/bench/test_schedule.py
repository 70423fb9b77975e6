"""What `bench --schedule` prints and writes, from made-up step times."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from rich.console import Console

from tests.unit.measure.bench.made_up import FAST, MadeUpTune, load, memory_bound
from vllm_eagle_ext.measure.bench.results import PLAIN, REPORT, SCHEDULE_KEY, Report, Variant
from vllm_eagle_ext.measure.bench.run import publish

pytestmark = pytest.mark.promise(
    "`bench --schedule` prints a config that vLLM reads as it was measured, and says where it is slower"
)


def shown(made, path):
    path.mkdir(exist_ok=True)
    console = Console(record=True, width=80, soft_wrap=True)
    report = made.report()
    publish(report, path, console)
    return report, console.export_text()


def speculative(text):
    """The option that was printed first, to serve with."""
    line = next(line for line in text.splitlines() if line.startswith("  --speculative-config"))
    return json.loads(shlex.split(line)[1])


def test_the_schedule_is_printed_ready_to_paste(tmp_path):
    report, text = shown(MadeUpTune(), tmp_path)
    choice = report.choice
    assert choice.exit_code == 1  # the drafter stays awake at 16 requests, where K is 0
    assert choice.served.kind == "schedule"
    config = speculative(text)
    assert config == choice.config.speculative_config
    assert config["num_speculative_tokens"] == 4
    assert config[SCHEDULE_KEY] == [[1, 1, 4], [2, 4, 1], [5, 16, 0]]
    assert "SLOWER than no draft with 16 at a time at context 64" in text
    assert "K=4 for 1 to 1 requests, K=1 for 2 to 4 requests, K=0 for 5 to 16 requests" in text
    # Gains are means over all loads with intervals, not the largest of noisy ones.
    gain = report.choice.gain
    said = f"schedule: {gain.median:.2f}x ({gain.low:.2f} to {gain.high:.2f})."
    assert f"Over no draft in the mean over all loads, {said}" in text
    assert re.search(r"all loads, K=\d: [\d.]+x \([\d.]+ to [\d.]+\)", text)
    assert Report.model_validate_json((tmp_path / REPORT).read_text()) == report
    assert text.splitlines()[-1].endswith("report.json, speedup.png, schedule.png")


def test_a_k_for_every_load_needs_no_schedule(tmp_path):
    report, text = shown(MadeUpTune(step_s=lambda at, k: 0.01 + 0.0001 * k), tmp_path)
    assert report.choice.served == Variant(kind="ours", draft=FAST, k=4)
    assert speculative(text)["num_speculative_tokens"] == 4
    assert SCHEDULE_KEY not in text
    assert report.choice.exit_code == 0
    assert "SLOWER" not in text


def test_the_surface_alone(tmp_path):
    report, text = shown(MadeUpTune(surface_only=True), tmp_path)
    assert report.choice is None
    assert report.of("closing") == []
    assert "--speculative-config" not in text
    row = next(line for line in text.splitlines() if line.strip().startswith("1 ") and "ms" in line)
    needed = memory_bound(load(1, 64), 4) / memory_bound(load(1, 64), 0)
    assert float(row.split()[-1]) == pytest.approx(needed, abs=0.02)
    assert max(len(line) for line in text.splitlines() if "ms" in line) <= 110


def test_no_draft_where_nothing_pays(tmp_path):
    report, text = shown(MadeUpTune(step_s=lambda at, k: 0.01 * (1 + 3 * k)), tmp_path)
    assert (report.choice.served, report.choice.exit_code) == (PLAIN, 0)
    assert "serve without a draft" in text


def test_no_draft_where_what_promised_to_pay_is_slower_as_served(tmp_path):
    """The closing round decides: its table is shown, and no config is."""
    report, text = shown(MadeUpTune(served_slower=5.0), tmp_path)
    choice = report.choice
    assert (choice.served, choice.exit_code, choice.gain) == (PLAIN, 0, None)
    assert choice.config.speculative_config is None
    assert "serve without a draft" in text
    assert "all loads, schedule: 0." in text
    assert "--speculative-config" not in text


def test_adaptive_verification_is_printed_where_it_gains_most(tmp_path):
    report, text = shown(MadeUpTune(adaptive=True, adaptive_gain=1.5), tmp_path)
    assert report.choice.served.kind == "adaptive"
    assert speculative(text)["enable_adaptive_verification"] is True
    assert "--additional-config" not in text


def test_a_machine_that_is_too_noisy_is_said_so(tmp_path):
    _, text = shown(MadeUpTune(step_s=lambda at, k: 0.01 - 0.001 * k), tmp_path / "noisy")
    assert "TOO NOISY: in 18 of 18 cases" in text
    _, text = shown(MadeUpTune(), tmp_path / "quiet")
    assert "TOO NOISY" not in text
