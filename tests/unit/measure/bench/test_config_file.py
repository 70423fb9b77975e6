"""`vllm-eagle bench --config`: what a file may hold, and the variant that it makes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.support.engine import TINY
from tests.unit.measure.bench.made_up import FAST, MadeUp
from tests.unit.measure.bench.test_table import printed, section
from tests.unit.measure.tune.made_up import MadeUp as MadeUpTune
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.measure.bench.request import BenchRequest, engine_arguments, settle
from vllm_eagle_ext.measure.bench.results import Folder, GivenConfig, Settings, Variant
from vllm_eagle_ext.measure.bench.schedule import variants
from vllm_eagle_ext.measure.tune.report import Config

DRAFT, TARGET = str(TINY / "postnorm"), str(TINY / "target")
KEY = "num_speculative_tokens_per_batch_size"
SCHEDULE = [[1, 1, 4], [2, 4, 1], [5, 16, 0]]
SPECULATIVE = {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 4, KEY: SCHEDULE}
REQUEST = BenchRequest(target=TARGET, drafts=[DRAFT], ks=[3], concurrency=[1, 4])
MADE_UP = GivenConfig(draft=FAST, speculative_config=SPECULATIVE | {"model": FAST}, additional_config={})


@pytest.fixture
def asked(tmp_path):
    """The request with a file of this content."""

    def make(content, **changes):
        file = tmp_path / "config.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return replace(REQUEST, config=file, **changes)

    return make


def tuned(path, config, target=TARGET):
    """A tune's report, of made-up times."""
    report = MadeUpTune().report(path)
    settings = report.settings.model_copy(update={"target": target, "draft": DRAFT})
    return report.model_copy(update={"settings": settings, "config": config}).model_dump_json()


@pytest.mark.parametrize("additional", [None, {"eagle_ext": {"strict": False}}])
def test_one_more_variant(asked, additional):
    content = {"speculative_config": SPECULATIVE, "additional_config": additional}
    settings, _ = settle(asked(content))
    assert [v.name for v in variants(settings)] == [
        "none", f"stock {DRAFT} K=3", f"ours {DRAFT} K=3", f"config {DRAFT} K=4"
    ]  # fmt: skip
    served = engine_arguments(settings, "config", DRAFT, 4)
    assert served["speculative_config"] == SPECULATIVE
    assert served.get("additional_config") == additional
    assert KEY not in engine_arguments(settings, "ours", DRAFT, 3)["speculative_config"]


def test_a_report_of_tune(asked, tmp_path):
    """As it is written; the same with keys spelt as on a command line, without what can be left out."""
    text = tuned(tmp_path / "tune", Config(speculative_config=SPECULATIVE, additional_config=None))
    settings, _ = settle(asked(text))
    assert settings.config == GivenConfig(
        draft=DRAFT, speculative_config=SPECULATIVE, additional_config={}
    )
    dashed = {name.replace("_", "-"): value for name, value in SPECULATIVE.items() if name != "method"}
    assert settle(asked({"speculative_config": dashed}))[0] == settings


def test_the_draft_is_named_as_the_command_does(asked, monkeypatch):
    monkeypatch.chdir(TINY)
    settings, _ = settle(asked({"speculative_config": SPECULATIVE | {"model": "postnorm/"}}))
    assert settings.config.draft == settings.config.speculative_config["model"] == DRAFT


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "Allowed: a file of JSON"),
        ("[]", "--config is 'list'. Allowed: an object"),
        ({}, "speculative_config is missing. Allowed: an object"),
        ({"speculative_config": [1]}, "speculative_config is [1]. Allowed: an object"),
        ({"speculative_config": SPECULATIVE, "additional_config": 3}, "additional_config is 3"),
        ({"speculative_config": SPECULATIVE, "max_model_len": 9}, "keys are ['max_model_len']"),
        (
            {"speculative_config": SPECULATIVE, "additional_config": {"eagle_ext": {"strict": 3}}},
            "eagle_ext.strict",
        ),
        (
            {"speculative_config": SPECULATIVE, "additional_config": {"eagle_ext": {"enabled": False}}},
            "enabled is False",
        ),
        *[
            ({"speculative_config": SPECULATIVE | {name: value}}, said)
            for name, value, said in [
                ("num_speculative_tokens", 0, "num_speculative_tokens is 0. Allowed: a whole number"),
                ("num_speculative_tokens", "4", "num_speculative_tokens is '4'"),
                ("model", "org/another", "model is 'org/another'. Allowed: one of the command's"),
                ("model", None, "model is missing"),
                ("method", "dflash", "dflash"),
                (KEY, [[1, 4, 5]], "with K from 0 to 4"),
                (KEY, [[2, 4, 1]], f"{KEY} is [[2, 4, 1]]"),
                (KEY, [[1, 4, 1], [4, 8, 0]], "rising"),
                (KEY, [[1, 4]], "[first, last, K]"),
                (KEY, [], f"{KEY} is []"),
                (KEY, "auto", f"{KEY} is 'auto'"),
            ]
        ],
    ],
    ids=str,
)
def test_what_is_refused(asked, content, said):
    with pytest.raises(EagleExtError) as refused:
        settle(asked(content))
    assert said in str(refused.value)
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("config", "target", "said"),
    [
        (Config(speculative_config=SPECULATIVE, additional_config=None), "org/other", "settings.target"),
        (Config(speculative_config=None, additional_config=None), TARGET, "no draft pays"),
        (None, TARGET, "without --surface-only"),
    ],
)
def test_reports_that_are_refused(asked, tmp_path, config, target, said):
    with pytest.raises(EagleExtError) as refused:
        settle(asked(tuned(tmp_path / "tune", config, target)))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dummy": True, "prompt_tokens": 8}, "real weights"),
        ({"synthetic_acceptance": [2.0]}, "real weights"),
        ({"engine": {"max_model_len": 150}}, "max_model_len is 150"),
        ({"drafts": [], "kinds": ["none"]}, "none is named"),
    ],
)
def test_commands_that_are_refused_beside_it(asked, change, said):
    with pytest.raises(EagleExtError) as refused:
        settle(asked({"speculative_config": SPECULATIVE}, **change))
    assert said in str(refused.value)


def test_a_missing_file_ends_the_command(tmp_path):
    out, file = tmp_path / "out", tmp_path / "none.json"
    command = ["bench", "--target", TARGET, "--draft", DRAFT, "--config", str(file), "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "Allowed: a file that can be read" in result.output
    assert not out.exists()


def test_its_row_in_the_report():
    report = MadeUp(config=MADE_UP).report()
    row = report.row(MADE_UP.variant, 1)
    assert row.measured == 3
    assert row.speedup.median > 1
    assert (row.against_stock, row.theory) == (None, None)  # whose K is one
    cells = section(printed(report), "concurrency 1")[-1]
    assert cells[:3] == ["config", "fast-draft", "4/1/0"]


def test_its_points_in_the_pictures(tmp_path):
    pytest.importorskip("matplotlib", reason="comes with the extra `measure`")
    from vllm_eagle_ext.measure.bench import plots

    made = MadeUp(ks=(1, 3), concurrency=(1, 4), config=MADE_UP)
    (panel,) = plots._plot_speedup(made.report()).axes
    assert panel.containers[-1].get_label() == "config K=4/1/0"
    assert len(plots.draw(made.report(), tmp_path)) == 4
    by_k = plots._plot_by_k(made.report())  # has no place for a K that changes
    assert not any("config" in str(line.get_label()) for panel in by_k.axes for line in panel.containers)


def test_folders_of_earlier_releases_have_none(tmp_path):
    made = MadeUp()
    without = {name: value for name, value in made.settings().model_dump().items() if name != "config"}
    assert Settings.model_validate(without) == made.settings()
    folder = MadeUp(config=MADE_UP).folder(tmp_path)
    assert Folder(tmp_path).settings().config == MADE_UP
    assert Variant(kind="config", draft=FAST, k=4) in {m.variant for m in folder.measurements()}
