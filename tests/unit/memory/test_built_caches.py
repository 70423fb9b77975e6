"""What a start says of its memory, and what a plan foresees, against the release that is imported: real
layers, real specs, vLLM's own sizes, groups and reservations."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from packaging.version import Version
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.version import __version__ as release

from tests.support.planning import kv_cache_planning
from tests.support.virtual_clock import draft_specs
from tests.unit.memory.built_model import NAMES, Builder, Case, count
from tests.unit.memory.configs import config
from vllm_eagle_ext.checkpoint.target_facts import text_config
from vllm_eagle_ext.device import Device, key_dim
from vllm_eagle_ext.memory.footprint import CacheSetting, footprint
from vllm_eagle_ext.memory.geometry import Attention, read_target
from vllm_eagle_ext.memory.savings import MIB
from vllm_eagle_ext.replay import built_caches
from vllm_eagle_ext.replay.built_caches import built_specs, per_token_specs, state_share

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


# Layers of a group, and of padding in all groups, next to 48 recurrent layers and 16 of attention.
GROUPS = {
    "no draft": ((), 16, 0),
    "z-lab's DFlash": (
        (Attention(layers=4, kv_heads=8, head_dim=128, window=2048),
         Attention(layers=1, kv_heads=8, head_dim=128)), 1, 0,
    ),
    "five full layers": ((Attention(layers=5, kv_heads=8, head_dim=128),), 5, 6),
    "five of the target's shape": ((Attention(layers=5, kv_heads=4, head_dim=256),), 21, 15),
}  # fmt: skip


def planned(case, scheme, draft=(), **changes):
    """What a plan for this release says."""
    published = config(NAMES[case.target])
    device = Device(
        release=release, capability=(9, 0), gdn_prefill=case.prefill,
        key_dim=key_dim(text_config(published)),
    )  # fmt: skip
    target = read_target(published)
    setting = CacheSetting(
        k=case.k, max_model_len=case.length, prefix_caching=case.prefix_caching,
        attention_alignment=case.attention,
        prefill_exports=device.prefill_exports, **changes,
    )  # fmt: skip
    return footprint(target, scheme, setting, draft)


# State blocks, tokens of an attention block, MiB of state and concurrency of Qwen3.6-27B, K = 15, 32k
# tokens, at a KV cache of 76.7 GiB, as the release's own functions count them.
TABLE = {
    ("triton", "replay"): (2, 928, 348, 32.24),
    ("triton", "per_token"): (17, 864, 2754, 16.34),
    ("flashinfer", "replay"): (3, 960, 540, 29.75) if EXPORTS else (2, 928, 348, 32.24),
    ("flashinfer", "per_token"): (18, 896, 3024, 15.41) if EXPORTS else (17, 864, 2754, 16.34),
}


@pytest.mark.parametrize(("prefill", "scheme"), TABLE)
def test_the_table(build, prefill, scheme):
    found = count(build(scheme, Case(prefill=prefill)), BUDGET)
    shown = found.state_blocks, found.tokens, found.state / MIB, round(found.concurrency, 2)
    assert shown == TABLE[prefill, scheme]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_plan_and_start_count_as_vllm(build, case):
    built = {scheme: build(scheme, case) for scheme in SCHEMES}
    specs = built_specs(built["replay"])
    started = {
        "replay": state_share(built["replay"], specs),
        "per_token": state_share(built["replay"], per_token_specs(built["replay"], specs)),
    }
    for scheme in SCHEMES:
        theirs, plan, start = count(built[scheme], BUDGET), planned(case, scheme), started[scheme]
        assert plan.layer_block.tokens == theirs.tokens
        for ours in (plan, start):
            assert (ours.state_blocks, ours.state) == (theirs.state_blocks, theirs.state)
            assert ours.pool(BUDGET) == theirs.pool
            assert ours.concurrency(BUDGET) == theirs.concurrency
        assert plan.recorded_inputs == start.recorded_inputs


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", GROUPS)
def test_groups_of_the_drafts_layers(build, name, scheme):
    draft, layers, padding = GROUPS[name]
    case = Case(k=7, length=8192)
    built = build(scheme, case)
    specs = built_specs(built) | draft_specs(built, draft)
    groups = kv_cache_planning.get_kv_cache_groups(built, dict(specs))
    wide = max(len(group.layer_names) for group in groups)
    assert (layers, padding) == (wide, wide * len(groups) - len(specs))
    plan = planned(case, scheme, draft, in_flight_tokens=built.max_in_flight_tokens)
    assert (plan.group_layers, plan.padding_layers) == (layers, padding)
    caches = kv_cache_planning.get_kv_cache_config_from_groups(built, groups, BUDGET)
    assert plan.pool(BUDGET) == caches.num_blocks
    assert plan.concurrency(BUDGET) == get_max_concurrency_for_kv_cache_config(built, caches)


@pytest.mark.parametrize("case", [*CASES[:4], Case(block_size=256, k=7)], ids=str)
def test_the_other_scheme_s_specs_are_those_of_vllm_s_layers(build, case):
    replaying = build("replay", case)
    specs = per_token_specs(replaying, built_specs(replaying))
    assert specs == built_specs(build("per_token", case))


def test_the_line(build):
    built = build("replay", Case(prefill="flashinfer"))
    vllm_s = count(built, BUDGET)
    built.cache_config.num_gpu_blocks = vllm_s.pool
    line = built_caches.state_report(built).line()
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
    monkeypatch.setattr(built_caches, "current_platform", SimpleNamespace(is_cuda=lambda: True))
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
