"""The self-test by hand: what it covers, what it says when something is wrong, and what it sends in."""

from __future__ import annotations

import json
import re

import pytest
import torch
from typer.testing import CliRunner

from tests.support import breakage
from tests.support.engine import has_gpu
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.measure.selftest import run
from vllm_eagle_ext.measure.selftest.run import (
    KS,
    RANKS,
    STATES,
    TARGETS,
    SelfTest,
    SelfTestCase,
    cases,
    without_paths,
)
from vllm_eagle_ext.measure.selftest.timing import layers_for, needed_bytes
from vllm_eagle_ext.replay.ops import cpu

pytestmark = pytest.mark.skipif(has_gpu(), reason="vLLM's CPU kernels")
SMALL = (("Qwen3.6-27B", 8, 3, STATES[0]), ("Qwen3.6-35B-A3B", 8, 7, STATES[1]))


@pytest.fixture
def invoke(monkeypatch, tmp_path):
    """The command on few shapes: exit status, what it printed, and its JSON."""
    monkeypatch.setattr("vllm_eagle_ext.measure.selftest.run.QUICK", SMALL)

    def start():
        path = tmp_path / "selftest.json"
        result = CliRunner().invoke(app, ["selftest", "--quick", "--out", str(path)])
        return result.exit_code, result.output, json.loads(path.read_text())

    return start


def test_all_published_shapes_are_checked():
    every = list(cases(quick=False))
    assert len(every) == len(set(every)) == len(TARGETS) * len(RANKS) * len(KS) * len(STATES)
    assert {case.shapes.HV for case in every} == {48, 24, 12, 6, 32, 16, 8, 4, 64}
    assert all(case.shapes.H * case.ranks == TARGETS[case.target][0] for case in every)


def test_a_machine_where_all_is_right(invoke):
    status, printed, doc = invoke()
    assert status == doc["exit_code"] == 0
    assert "All 2 checks passed." in printed
    assert "left out: step times and CUDA graphs: there is no GPU here" in printed
    assert doc["device"]["type"] == "cpu"
    assert {"vllm", "torch", "vllm-eagle-ext"} <= set(doc["versions"])
    assert [check["case"] for check in doc["checks"]] == [
        "Qwen3.6-27B, TP 8, K 3, float32 state",
        "Qwen3.6-35B-A3B, TP 8, K 7, bfloat16 state",
    ]
    assert doc["times"] == []  # of a CPU none is told as if it were a GPU's
    assert not re.search(r"/(home|root|tmp|usr|work)\b", json.dumps(doc))


@pytest.mark.promise("`selftest` fails where kernels are wrong")
def test_a_machine_where_something_is_wrong(invoke, monkeypatch):
    breakage.apply("other beta", monkeypatch.setattr)
    status, printed, doc = invoke()
    assert status == doc["exit_code"] == 1
    assert "FAILED Qwen3.6-27B, TP 8, K 3, float32 state: sequential kernels" in printed
    assert "values differ, by up to" in printed
    wrong = doc["checks"][0]
    assert not wrong["ok"]
    (states,) = wrong["parts"]
    assert states["name"] == "states"
    assert states["differing"] > 0
    assert states["max_abs"] > 0


def test_a_device_that_is_lost_ends_it(invoke, monkeypatch):
    """Whatever else is asked of it would fail with the same error."""

    def fail(*_):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(cpu, "verify", fail)
    status, printed, doc = invoke()
    assert status == 1
    (check,) = doc["checks"]
    assert check["error"].endswith("illegal memory access was encountered, in verify")
    assert any(text.startswith("all after Qwen3.6-27B, TP 8, K 3") for text in doc["left_out"])
    assert "1 of 1 checks FAILED" in printed


def test_a_time_that_cannot_be_taken_is_left_out():
    (kernels,), _ = run._kernels_here()
    result = SelfTest(device={"name": "a CPU"}, versions={}, quick=True)
    run._time_kernels(result, [kernels], quick=True, watch=lambda *_: None)
    assert result.times == []
    assert [text.partition(":")[0] for text in result.left_out] == [
        f"times of K {k}, {batch} requests and states in {state}"
        for state in ("float32", "bfloat16")
        for k in run.TIMED_KS
        for batch in run.QUICK_BATCHES
    ]


def test_states_are_more_than_a_cache_holds():
    """An H100's has 50 MiB, one request's state in a layer of 27B 3 MiB."""
    h100, state = 50 << 20, 48 * 128 * 128 * 4
    shapes = SelfTestCase(run.TIMED, 1, 15, torch.float32).shapes
    for batch, layers in ((1, 48), (4, 17), (16, 5), (64, 4)):
        assert layers_for(shapes, batch, h100) == layers
        if batch > 1:
            assert layers * batch * state >= 4 * h100
    assert needed_bytes(shapes, 4, 17) > 17 * 4 * 16 * state


def test_a_platform_without_replay_is_refused(monkeypatch):
    from vllm.platforms import current_platform

    for name in ("is_cpu", "is_cuda"):
        monkeypatch.setattr(type(current_platform), name, lambda _: False)
    result = CliRunner().invoke(app, ["selftest"])
    assert result.exit_code == 2
    assert "an NVIDIA GPU or a CPU" in result.output


def test_paths_are_not_sent_in():
    text = "PTXASError: ptxas /home/ann/.triton/cache/x.ptx failed, see ~/log/a.txt; 3/4 and bf16/fp32"
    assert without_paths([{"error": text}]) == [
        {"error": "PTXASError: ptxas <path> failed, see <path>; 3/4 and bf16/fp32"}
    ]
