"""What a tune prints, writes and draws, from made-up step times."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from rich.console import Console

from tests.unit.measure.bench.made_up import FAST, MadeUpTune, load, memory_bound
from vllm_eagle_ext.measure.bench.engines import engine_arguments
from vllm_eagle_ext.measure.bench.results import PLAIN, REPORT, SCHEDULE_KEY, Report, Variant
from vllm_eagle_ext.measure.bench.run import publish

pytestmark = pytest.mark.promise(
    "`tune` prints a config that vLLM reads as it was measured, and says where it is slower"
)

PNG = b"\x89PNG\r\n\x1a\n"


def shown(made, path):
    path.mkdir(exist_ok=True)
    console = Console(record=True, width=80, soft_wrap=True)
    report = made.report()
    publish(report, path, console)
    return report, console.export_text()


def flags(text):
    """The options that were printed, first those to serve with."""
    line = next(line for line in text.splitlines() if line.startswith("  --speculative-config"))
    words = shlex.split(line)
    return {name: json.loads(value) for name, value in zip(words[::2], words[1::2], strict=False)}


def test_the_schedule_is_printed_ready_to_paste(tmp_path):
    report, text = shown(MadeUpTune(), tmp_path)
    choice = report.choice
    assert choice.exit_code == 1  # the drafter stays awake at 16 requests, where K is 0
    assert choice.served.kind == "schedule"
    config = flags(text)["--speculative-config"]
    assert config == choice.config.speculative_config
    assert config["num_speculative_tokens"] == 4
    assert config[SCHEDULE_KEY] == [[1, 1, 4], [2, 4, 1], [5, 16, 0]]
    assert "SLOWER than no draft with 16 requests at context 64" in text
    assert "K=4 for 1 request, K=1 for 2 to 4 requests, K=0 for 5 to 16 requests" in text


def test_gains_over_all_loads_are_means_with_intervals(tmp_path):
    """Not the largest of noisy cells."""
    report, text = shown(MadeUpTune(), tmp_path)
    gain = report.choice.gain
    said = f"{gain.median:.2f}x ({gain.low:.2f} to {gain.high:.2f}) in the mean over 6 loads"
    assert f"Over no draft: {said}, measured with this config in 6 rounds." in text
    assert re.search(r"Next to it, K=\d: [\d.]+x \([\d.]+ to [\d.]+\) in the mean over 6 loads", text)


def test_nowhere_slower(tmp_path):
    report, text = shown(MadeUpTune(awake_s=0.0, own_noise=0.03, concurrency=(1, 4)), tmp_path)
    assert report.choice.exit_code == 0
    assert "SLOWER" not in text


def test_a_length_for_every_load_needs_no_schedule(tmp_path):
    report, text = shown(MadeUpTune(step_s=lambda at, k: 0.01 + 0.0001 * k), tmp_path)
    assert report.choice.served == Variant(kind="ours", draft=FAST, k=4)
    assert flags(text)["--speculative-config"]["num_speculative_tokens"] == 4
    assert SCHEDULE_KEY not in text
    assert report.choice.exit_code == 0


def test_the_table_of_the_surface(tmp_path):
    _, text = shown(MadeUpTune(), tmp_path)
    one = next(line for line in text.splitlines() if line.strip().startswith("1 ") and "ms" in line)
    needed = memory_bound(load(1, 64), 4) / memory_bound(load(1, 64), 0)
    assert f"{needed:.2f}*" in one or f"{needed + 0.01:.2f}*" in one or f"{needed - 0.01:.2f}*" in one
    assert "measured" in text
    assert max(len(line) for line in text.splitlines() if "ms" in line) <= 110


def test_the_surface_alone(tmp_path):
    report, text = shown(MadeUpTune(surface_only=True), tmp_path)
    assert report.choice is None
    assert report.of("closing") == []
    assert "trained or not" in text
    assert "--speculative-config" not in text
    assert re.search(r"\d+% \(K=\d\)", text)


def test_no_draft_where_nothing_pays(tmp_path):
    report, text = shown(MadeUpTune(step_s=lambda at, k: 0.01 * (1 + 3 * k)), tmp_path)
    assert (report.choice.served, report.choice.exit_code) == (PLAIN, 0)
    assert "serve without a draft" in text
    assert "never" in text  # K+1 tokens are not enough at any acceptance


def test_no_draft_where_what_promised_to_pay_is_slower_as_served(tmp_path):
    """The closing round decides: its table is shown, and no config is."""
    report, text = shown(MadeUpTune(served_slower=5.0), tmp_path)
    choice = report.choice
    assert (choice.served, choice.exit_code, choice.gain) == (PLAIN, 0, None)
    assert choice.config.speculative_config is None
    assert "serve without a draft" in text
    assert "As served, schedule over no draft: 0." in text
    assert "--speculative-config" not in text


def test_adaptive_verification_is_printed_where_it_gains_most(tmp_path):
    report, text = shown(MadeUpTune(adaptive=True, adaptive_gain=1.5), tmp_path)
    assert report.choice.served.kind == "adaptive"
    assert flags(text)["--speculative-config"]["enable_adaptive_verification"] is True
    assert "--additional-config" not in flags(text)
    assert "adaptive verification" in text


def test_json_and_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="comes with the extra `measure`")
    report, _ = shown(MadeUpTune(), tmp_path)
    assert Report.model_validate_json((tmp_path / REPORT).read_text()) == report
    assert (tmp_path / "tune.png").read_bytes().startswith(PNG)


def test_a_machine_that_is_too_noisy_is_said_so(tmp_path):
    _, text = shown(MadeUpTune(step_s=lambda at, k: 0.01 - 0.001 * k), tmp_path / "noisy")
    assert "TOO NOISY: in 18 of 18 cases" in text
    _, text = shown(MadeUpTune(), tmp_path / "quiet")
    assert "TOO NOISY" not in text


def test_what_engines_are_started_with():
    settings = MadeUpTune().settings().model_copy(update={"engine": {"max_num_seqs": 8}})
    plain = engine_arguments(settings, PLAIN)
    assert plain == {"seed": 0, "max_num_seqs": 8, "model": "org/target-8B"}
    held = engine_arguments(settings, Variant(kind="held", draft=FAST, k=2))
    assert held["speculative_config"]["num_speculative_tokens"] == 4
    assert {k for _, _, k in held["speculative_config"][SCHEDULE_KEY]} == set(settings.ks)
    assert held["scheduler_cls"].endswith("held_length.build_holding_scheduler")
    fixed = engine_arguments(settings, Variant(kind="ours", draft=FAST, k=2))
    assert fixed["speculative_config"]["num_speculative_tokens"] == 2
    assert "scheduler_cls" not in fixed
