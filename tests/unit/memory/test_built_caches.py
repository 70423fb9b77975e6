"""What a start says of its memory, against the release that is imported: real layers, real specs, vLLM's
own sizes, groups and reservations. What a plan foresees is in tests/unit/plan/test_by_vllm.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from packaging.version import Version
from vllm.version import __version__ as release

from tests.unit.memory.built_model import Builder, Case, count
from vllm_eagle_ext.memory.footprint import MIB, savings_line
from vllm_eagle_ext.replay import built_caches
from vllm_eagle_ext.replay.built_caches import built_specs, footprint_of, per_token_specs

pytestmark = [
    pytest.mark.usefixtures("single_process_group"),
    pytest.mark.promise(
        "start line and `plan` count as the release that is imported, with either prefill backend"
    ),
]

BUDGET = 82359825203  # bytes: of 140 GiB, less the weights of the 27B model and a reserve
EXPORTS = Version(release) >= Version("0.33")
SCHEMES = ("replay", "per_token")
CASES = [
    Case(),
    Case(prefill="flashinfer"),
    Case(prefill="flashinfer", prefix_caching=False, k=7),
    Case(prefill="flashinfer", attention=128),
    Case(attention=128, k=8),
    Case("4B", k=3, length=8192),
    Case("4B", k=16, prefill="flashinfer", length=8192),
]


@pytest.fixture
def build(tmp_path, monkeypatch):
    return Builder(tmp_path, monkeypatch)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_start_counts_as_vllm(build, case):
    built = {scheme: build(scheme, case) for scheme in SCHEMES}
    specs = built_specs(built["replay"])
    started = {
        "replay": footprint_of(built["replay"], specs),
        "per_token": footprint_of(built["replay"], per_token_specs(built["replay"], specs)),
    }
    for scheme in SCHEMES:
        theirs, start = count(built[scheme], BUDGET), started[scheme]
        assert (start.state_blocks, start.state) == (theirs.state_blocks, theirs.state)
        assert start.pool(BUDGET) == theirs.pool
        assert start.concurrency(BUDGET) == theirs.concurrency


@pytest.mark.parametrize("case", [*CASES[:4], Case(block_size=256, k=7)], ids=str)
def test_the_other_scheme_s_specs_are_those_of_vllm_s_layers(build, case):
    replaying = build("replay", case)
    specs = per_token_specs(replaying, built_specs(replaying))
    assert specs == built_specs(build("per_token", case))


def test_the_line(build):
    built = build("replay", Case(prefill="flashinfer"))
    vllm_s = count(built, BUDGET)
    built.cache_config.num_gpu_blocks = vllm_s.pool
    *both, budget = built_caches.both_footprints(built)
    line = savings_line(*both, budget=budget, length=32768)
    fit = int(vllm_s.concurrency)
    assert f"replay, {vllm_s.state_blocks} state blocks per request" in line
    assert f": {vllm_s.state // MIB} MiB instead of" in line
    assert f"; {fit} requests of 32768 tokens fit instead of {15 if EXPORTS else 16}." in line


@pytest.mark.parametrize(
    ("length", "sizes", "mode", "ends"),
    [
        (8192, [16, 256, 512], "FULL", "full CUDA graphs end at 32 requests (512 tokens): "),
        (8192, [16, 1440], "FULL", None),
        (32768, [16, 256, 512], "FULL", None),
        (8192, [16, 256, 512], "NONE", None),
        (8192, [], "FULL", None),
    ],
)
def test_capacity_beyond_the_graphs(build, vllm_log, monkeypatch, length, sizes, mode, ends):
    built = build("replay", Case(length=length, prefill="triton"))
    built.cache_config.num_gpu_blocks = count(built, BUDGET).pool
    graphs = SimpleNamespace(decode_mode=lambda: built_caches.CUDAGraphMode[mode])
    context = built.compilation_config.static_forward_context
    built.compilation_config = SimpleNamespace(
        cudagraph_capture_sizes=sizes, cudagraph_mode=graphs, static_forward_context=context
    )
    built_caches.log_once.cache_clear()
    monkeypatch.setattr(built_caches.current_platform, "is_cuda", lambda: True)
    built_caches.log_start_line(built)
    assert bool(vllm_log.containing("full CUDA graphs end")) is (ends is not None)
    assert ends is None or vllm_log.containing(ends)
    assert vllm_log.containing("Recurrent state: replay, 2 state blocks per request")


def test_nothing_is_said_of_the_caches_of_a_profile(build, vllm_log):
    built = build("replay", Case("4B", k=3, length=1024))
    built.cache_config.num_gpu_blocks = None
    built_caches.log_start_line(built)
    assert not vllm_log.containing("Recurrent state: replay")


def test_a_target_whose_specs_cannot_be_read_is_served(build, vllm_log):
    built = build("replay", Case("4B", k=3, length=1024))
    built.cache_config.num_gpu_blocks = 7
    built.compilation_config = SimpleNamespace(static_forward_context={})
    built_caches.log_start_line(built)
    assert vllm_log.containing("Could not estimate replay savings")
