"""What a tune prints, writes and draws, from made-up step times."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from rich.console import Console

from tests.unit.measure.tune.made_up import MadeUp, memory_bound
from vllm_eagle_ext.measure.tune.engines import arguments_of
from vllm_eagle_ext.measure.tune.publish import PICTURE, REPORT, publish
from vllm_eagle_ext.measure.tune.report import TuneReport, report_of
from vllm_eagle_ext.measure.tune.results import NONE, ServedConfig

pytestmark = pytest.mark.promise(
    "`tune` prints a config that vLLM reads as it was measured, and says where it is slower"
)

PNG = b"\x89PNG\r\n\x1a\n"


def shown(made, path):
    folder = made.folder(path)
    console = Console(record=True, width=80, soft_wrap=True)
    report = report_of(folder)
    publish(report, folder, console)
    return report, console.export_text()


def flags(text):
    """The options that were printed, first those to serve with."""
    line = next(line for line in text.splitlines() if line.startswith("  --speculative-config"))
    words = shlex.split(line)
    return {name: json.loads(value) for name, value in zip(words[::2], words[1::2], strict=False)}


def test_the_schedule_is_printed_ready_to_paste(tmp_path):
    report, text = shown(MadeUp(), tmp_path)
    assert report.exit_code == 1  # the drafter stays awake at 16 requests, where K is 0
    assert report.served.name == "schedule"
    config = flags(text)["--speculative-config"]
    assert config == report.config.speculative_config
    assert config["num_speculative_tokens"] == 4
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 1, 4], [2, 4, 1], [5, 16, 0]]
    assert "SLOWER than no draft with 16 requests at context 64" in text
    assert "K=4 for 1 request, K=1 for 2 to 4 requests, K=0 for 5 to 16 requests" in text


def test_nowhere_slower(tmp_path):
    report, text = shown(MadeUp(awake_s=0.0, own_noise=0.03, requests=(1, 4)), tmp_path)
    assert report.exit_code == 0
    assert "SLOWER" not in text
    assert min(row.gain.median for row in report.closing if row.served == report.served) > 1


def test_a_length_for_every_load_needs_no_schedule(tmp_path):
    report, text = shown(MadeUp(step_s=lambda load, k: 0.01 + 0.0001 * k), tmp_path)
    assert report.served == ServedConfig(name="fixed", k=4)
    assert flags(text)["--speculative-config"]["num_speculative_tokens"] == 4
    assert "num_speculative_tokens_per_batch_size" not in text
    assert report.exit_code == 0


def test_the_table_of_the_surface(tmp_path):
    report, text = shown(MadeUp(), tmp_path)
    one = next(line for line in text.splitlines() if line.strip().startswith("1 ") and "ms" in line)
    needed = memory_bound(report.surface[0].load, 4) / memory_bound(report.surface[0].load, 0)
    assert f"{needed:.2f}*" in one or f"{needed + 0.01:.2f}*" in one or f"{needed - 0.01:.2f}*" in one
    assert "measured" in text
    assert max(len(line) for line in text.splitlines() if "ms" in line) <= 110


def test_the_surface_alone(tmp_path):
    report, text = shown(MadeUp(surface_only=True), tmp_path)
    assert report.served is None
    assert (report.exit_code, report.closing, report.acceptance) == (0, [], [])
    assert "before it is trained" in text
    assert "--speculative-config" not in text
    assert re.search(r"\d+% \(K=\d\)", text)


def test_no_draft_where_nothing_pays(tmp_path):
    report, text = shown(MadeUp(step_s=lambda load, k: 0.01 * (1 + 3 * k)), tmp_path)
    assert report.served == NONE
    assert report.exit_code == 0
    assert "serve without a draft" in text
    assert "never" in text  # K+1 tokens are not enough at any acceptance


def test_no_draft_where_what_promised_to_pay_is_slower_as_served(tmp_path):
    """The closing round decides: its table is shown, and no config is."""
    made = MadeUp()
    folder = made.folder(tmp_path)
    file = tmp_path / "cells.jsonl"
    cells = [json.loads(line) for line in file.read_text().splitlines()]
    for cell in cells:
        if cell["stage"] == "closing" and cell["served"]["name"] != "none":
            cell["step_s"] *= 5
    file.write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    console = Console(record=True, width=80, soft_wrap=True)
    report = report_of(folder)
    publish(report, folder, console)
    text = console.export_text()
    assert (report.served, report.exit_code, report.mean_gain) == (NONE, 0, None)
    assert report.config.speculative_config is None
    assert "serve without a draft" in text
    assert "As served, schedule over no draft: 0." in text
    assert "--speculative-config" not in text


def test_adaptive_verification_is_printed_where_it_gains_most(tmp_path):
    report, text = shown(MadeUp(adaptive=True, adaptive_gain=1.5), tmp_path)
    assert report.served.name == "adaptive"
    assert flags(text)["--speculative-config"]["enable_adaptive_verification"] is True
    assert "--additional-config" not in flags(text)
    assert "adaptive verification" in text


def test_json_and_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="comes with the extra `measure`")
    report, _ = shown(MadeUp(), tmp_path)
    written = TuneReport.model_validate_json((tmp_path / REPORT).read_text())
    assert written == report
    assert written.context.versions
    assert written.context.device
    assert (tmp_path / PICTURE).read_bytes().startswith(PNG)


def test_what_engines_are_started_with():
    settings = MadeUp().settings().model_copy(update={"engine": {"max_num_seqs": 8}})
    plain = arguments_of(settings, NONE)
    assert plain == {"seed": 0, "max_num_seqs": 8, "model": "org/target"}
    held = arguments_of(settings, ServedConfig(name="held"))
    mentioned = {k for _, _, k in held["speculative_config"]["num_speculative_tokens_per_batch_size"]}
    assert mentioned == set(settings.lengths)
    assert held["scheduler_cls"].endswith("held_length.build_holding_scheduler")
    fixed = arguments_of(settings, ServedConfig(name="fixed", k=2))
    assert fixed["speculative_config"]["num_speculative_tokens"] == 2
    assert "scheduler_cls" not in fixed


def test_a_machine_that_is_too_noisy_is_said_so(tmp_path):
    _, text = shown(MadeUp(step_s=lambda load, k: 0.01 - 0.001 * k), tmp_path / "noisy")
    assert "TOO NOISY: in 18 of 18 cases" in text
    _, text = shown(MadeUp(), tmp_path / "quiet")
    assert "TOO NOISY" not in text
