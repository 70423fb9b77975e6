"""The virtual clock gives the same digits in every run of a release, and shows what a plan cannot."""

from __future__ import annotations

import json
import os

import pytest
from packaging.version import Version
from vllm.version import __version__ as release

from benchmarks import virtual_clock
from benchmarks.gpu.steps import POOL
from benchmarks.step_model import GPUS, Modelled, read_times
from benchmarks.virtual_clock import Cell, Runner
from tests.support.virtual_clock import Load
from tests.unit.measure.bench.made_up import MadeUpTune, memory_bound
from tests.unit.memory.built_model import Builder
from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.measure.bench.results import ServedLoad

pytestmark = pytest.mark.usefixtures("single_process_group")

STEPS = 80
# By release: tokens/s, most requests at a time, and a hash of every step's end and schedule.
EXACT = {
    (0, 32): {
        "none, z-lab": (441.9469484768499, 32, "78bb4e3b2bf9"),
        "per_token, z-lab": (467.25797110322594, 13, "bf9e1fead9cc"),
        "replay, z-lab": (559.1793489040764, 32, "4daaf252cc16"),
        "per_token, five full layers": (489.44611722092463, 12, "ac848add4f9f"),
        "replay, five full layers": (559.1793489040764, 32, "4daaf252cc16"),
    },
    (0, 33): {
        "none, z-lab": (448.3906809633509, 32, "95ce25d080c1"),
        "per_token, z-lab": (492.63974180652093, 13, "2e50dbafa1d7"),
        "replay, z-lab": (556.0586610251468, 32, "abe35b0acbbd"),
        "per_token, five full layers": (485.89991434307217, 12, "96f96d979c69"),
        "replay, five full layers": (556.0586610251468, 32, "abe35b0acbbd"),
    },
}


@pytest.fixture
def runner(tmp_path, monkeypatch):
    return Runner(tmp_path, Builder(tmp_path, monkeypatch), None)


def test_a_quarter_has_a_quarter_of_the_memory(tmp_path):
    budget = virtual_clock.plan_of(Cell("H100", 1024, 32, "z-lab", "per_token", 3), tmp_path).budget
    assert budget / 4 == pytest.approx(POOL, rel=0.001)


@pytest.mark.full
def test_exact_figures(runner, monkeypatch):
    monkeypatch.setattr(virtual_clock, "ANSWER", 64)
    cells = {}
    for scheme, k, draft in (
        ("none", 0, "z-lab"), ("per_token", 7, "z-lab"), ("replay", 7, "z-lab"),
        ("per_token", 7, "five full layers"), ("replay", 7, "five full layers"),
    ):  # fmt: skip
        cell = runner.run(Cell("H100", 1024, 32, draft, scheme, k), STEPS)
        cells[f"{scheme}, {draft}"] = cell["tokens_per_s"], cell["most_running"], cell["digest"][:12]
        if scheme == "per_token":
            assert cell["most_running"] > cell["plan_fits"]  # a worst case
    print(json.dumps(cells))
    assert cells == EXACT[Version(release).release[:2]]


def selftest(**changes):
    rows = [
        {
            "k": k,
            "requests": 32,
            "layers": 4,
            "replay_ms": 4 * 32 * 5e-3,
            "per_token_ms": 4 * 32 * k * 1e-3,
        }
        for k in (7, 15)
    ]
    device = {"name": "NVIDIA H100 80GB HBM3"}
    return {"selftest": 2, "device": device, "copy_bandwidth": 3e12, "times": rows} | changes


def test_times_of_a_selftest(runner, tmp_path):
    file = tmp_path / "selftest.json"
    file.write_text(json.dumps(selftest()))
    times = read_times(file, runner.pair)
    assert times.gpu.bandwidth == 3e12
    assert times.gpu.state_us == {"replay": {7: 5.0, 15: 5.0}, "per_token": {7: 7.0, 15: 15.0}}
    load = Load(32, 1024, 0)
    difference = times.seconds("per_token", 15, load) - times.seconds("replay", 15, load)
    assert difference == pytest.approx(32 * 48 * 10e-6)


def test_a_selftest_gives_times_of_its_gpu_only(runner, tmp_path):
    file = tmp_path / "selftest.json"
    cells = [Cell(gpu, 1024, 8, "z-lab", "replay", 3) for gpu in ("H100", "H200")]
    assert [runner.has_times_of(cell) for cell in cells] == [True, True]
    file.write_text(json.dumps(selftest()))
    runner.measured = read_times(file, runner.pair)
    assert [runner.has_times_of(cell) for cell in cells] == [True, False]
    file.write_text(json.dumps(selftest(device={"name": "NVIDIA GH200 480GB"})))
    with pytest.raises(OptionsError, match="on H100 or H200"):
        read_times(file, runner.pair)


@pytest.mark.parametrize(
    "content",
    [[], {}, selftest(times=[]), selftest(copy_bandwidth=None), selftest(device={"name": "\x1b[2J"})],
)
def test_other_files_are_refused(runner, tmp_path, content):
    file = tmp_path / "found.json"
    file.write_text(json.dumps(content))
    with pytest.raises(OptionsError, match="--times is") as refused:
        read_times(file, runner.pair)
    assert "\x1b" not in str(refused.value)


def test_what_a_step_of_the_model_takes(runner):
    times = Modelled(runner.pair, GPUS["H100"])
    one, many = (times.seconds("none", 0, Load(n, 1024, 0)) for n in (1, 400))
    weights = 2 * 25.6e9 / (0.8 * 3.35e12)  # of a step, without the embeddings
    assert one == pytest.approx(weights + 1e-3, rel=0.04)
    assert many > 2 * one  # arithmetic over the ridge
    ratio = times.seconds("per_token", 7, Load(32, 1024, 0)) / times.seconds(
        "replay", 7, Load(32, 1024, 0)
    )
    assert 1.1 < ratio < 1.5


def test_times_of_a_tune(runner, tmp_path):
    file = tmp_path / "report.json"
    file.write_text(MadeUpTune(noise=0, own_noise=0).sweep().model_dump_json())
    times = read_times(file, runner.pair)
    for k, requests in ((0, 1), (4, 16)):  # measured; between contexts of 64 and 512 in proportion
        expected = memory_bound(ServedLoad(concurrency=requests, context=100), k)
        assert times.seconds("replay", k, Load(requests, 100, 0)) == pytest.approx(expected)
    prompt = times.seconds("none", 0, Load(1, 64, 2048)) - times.seconds("none", 0, Load(1, 64, 0))
    assert prompt == pytest.approx(2048 * (0.001 + 0.0005 / 16), rel=1e-6)
    with pytest.raises(OptionsError, match="K = 7"):
        times.seconds("replay", 7, Load(1, 64, 0))


def test_an_import_sets_no_variable():
    """Engines of other tests in this process would inherit it, and log nothing."""
    assert "VLLM_LOGGING_LEVEL" not in os.environ
