"""Figures worked out by hand for published targets, and rules that hold for any target."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.memory.configs import TARGETS
from vllm_eagle_ext.memory.footprint import CacheSetting, footprint, layer_block_of, moved_per_step
from vllm_eagle_ext.memory.geometry import Attention, Recurrent, Target, read_target
from vllm_eagle_ext.memory.savings import MIB, StateReport
from vllm_eagle_ext.memory.state_blocks import state_blocks

FP32 = " fp32"  # states, by --mamba-ssm-cache-dtype: vLLM reads no dtype of them in Qwen3-Next's config
CACHED = "block boundary of prefix caching"


def cost(name, scheme, k, *, prefix_caching=False, length=1024, **options):
    setting = CacheSetting(k=k, max_model_len=length, prefix_caching=prefix_caching, **options)
    published = name.removesuffix(FP32)
    return footprint(read_target(TARGETS[published], fp32_state=published != name), scheme, setting)


# Per request in MiB. `rough` adds the recorded inputs of one state block to the padded blocks; exactly,
# they are part of the block that is padded, and of both blocks where prefix caching keeps two.
TABLE = [
    # name, K, per_token none, per_token align, replay none, roughly, replay align, roughly
    ("4B", 8, 472.5, 525, 55.5, 55, 111, 108),
    ("4B", 16, 943.5, 999, 60, 60, 120, 116),
    ("27B", 8, 1404, 1560, 162, 163, 324, 319),
    ("27B", 16, 2754, 2916, 177, 175, 354, 337),
    ("35B-A3B", 8, 590.625, 656.25, 68.4375, 69, 136.875, 134),
    ("35B-A3B", 16, 1179.375, 1248.75, 75, 75, 150, 145),
    ("Next-80B", 8, 384.75, 427.5, 46.125, 47, 92.25, 89),
    ("Next-80B", 16, 803.25, 850.5, 54, 55, 108, 102),
    ("Next-80B fp32", 8, 708.75, 787.5, 82.125, 83, 164.25, 161),
    ("Next-80B fp32", 16, 1415.25, 1498.5, 90, 91, 180, 174),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}, K={row[1]}")
def test_state_per_request(row):
    name, k, none, align, replay_none, rough_none, replay_align, rough_align = row
    assert cost(name, "per_token", k).state == none * MIB
    assert cost(name, "per_token", k, prefix_caching=True).state == align * MIB
    replay = cost(name, "replay", k)
    assert replay.state == replay_none * MIB
    assert replay.state == pytest.approx(rough_none * MIB, rel=0.025)
    both = cost(name, "replay", k, prefix_caching=True)
    assert both.state == replay_align * MIB == 2 * replay.state
    assert both.recorded_inputs == 2 * replay.recorded_inputs
    assert rough_align < replay_align < 1.06 * rough_align


@pytest.mark.parametrize(
    ("k", "scheme", "tokens"),
    [
        (0, "per_token", 784),
        (8, "per_token", 832),
        (16, "per_token", 864),
        (8, "replay", 864),
        (16, "replay", 944),
    ],
)
def test_attention_block_of_27b(k, scheme, tokens):
    block = cost("27B", scheme, k).layer_block
    assert block.tokens == tokens
    assert block.padded == tokens * 4096
    assert 0 <= block.padded - block.raw < 16 * 4096


def test_state_block_of_27b_with_16_draft_tokens():
    target = read_target(TARGETS["27B"])
    assert target.recurrent.record_bytes == 2 * (2048 + 6144 + 96)
    assert cost("27B", "per_token", 16).layer_block.raw == 19 * 10240 * 2 + 3 * MIB
    assert cost("27B", "replay", 16).layer_block.raw == 19 * 10240 * 2 + 3 * MIB + 17 * 16576
    assert cost("27B", "replay", 16).recorded_inputs == 48 * 17 * 16576


@pytest.mark.parametrize(
    ("name", "k", "per_token", "replay"),
    [
        ("27B", 8, 1440, 446), ("27B", 16, 2592, 458), ("35B-A3B", 16, 1080, 192),
        ("4B", 16, 864, 154), ("Next-80B", 16, 648, 123),
    ],
)  # fmt: skip
def test_state_moved_per_step(name, k, per_token, replay):
    """The figures assume gates in fp32; replay records them in the model's dtype, which takes less."""
    recurrent = read_target(TARGETS[name]).recurrent
    assert moved_per_step(recurrent, "per_token", k) == per_token * MIB
    assert moved_per_step(recurrent, "replay", k) == pytest.approx(replay * MIB, abs=0.75 * MIB)


@pytest.mark.parametrize(
    ("scheme", "prefix_caching", "cpu", "count", "held"),
    [
        ("per_token", False, False, 17, "committed state, 16 draft tokens"),
        (
            "per_token",
            True,
            False,
            18,
            f"committed state, 16 draft tokens, {CACHED}",
        ),
        ("per_token", False, True, 17, "committed state, 16 draft tokens"),
        ("replay", False, False, 1, "committed state"),
        ("replay", True, False, 2, f"committed state, {CACHED}"),
        ("replay", False, True, 2, "committed state, CPU scratch"),
        ("replay", True, True, 3, f"committed state, {CACHED}, CPU scratch"),
    ],
)
def test_state_blocks_per_request(scheme, prefix_caching, cpu, count, held):
    blocks = state_blocks(scheme, k=16, prefix_caching=prefix_caching, cpu=cpu)
    assert blocks.count == count
    noun = "block" if count == 1 else "blocks"
    assert str(blocks) == f"{count} state {noun} per request ({held})"
    setting = CacheSetting(k=16, max_model_len=1, prefix_caching=prefix_caching, cpu=cpu)
    assert footprint(read_target(TARGETS["27B"]), scheme, setting).state_blocks == count


def test_ranks_divide_everything():
    one, two = (read_target(TARGETS["27B"], tp=tp) for tp in (1, 2))
    for size in ("ssm_bytes", "conv_dim", "record_bytes"):
        assert getattr(one.recurrent, size) == 2 * getattr(two.recurrent, size)
    assert one.attention.token_bytes == 2 * two.attention.token_bytes
    # Two key/value heads on four ranks: each has one.
    assert read_target(TARGETS["35B-A3B"], tp=4).attention.token_bytes == 2 * 256 * 2


def test_a_request_takes_the_blocks_counted_on_a_cpu():
    """12 against 30 blocks: three groups of 2 or 8 state blocks, and six blocks of attention."""
    target = Target(
        recurrent=Recurrent(
            layers=6, key_heads=2, value_heads=4, key_dim=64, value_dim=64, conv_width=4,
            model_bytes=2, state_bytes=4,
        ),
        attention=Attention(layers=2, kv_heads=2, head_dim=64),
        max_position_embeddings=None,
    )  # fmt: skip
    setting = CacheSetting(k=7, max_model_len=6 * 256, prefix_caching=False, cpu=True)
    costs = [footprint(target, scheme, setting) for scheme in ("per_token", "replay")]
    assert [found.layer_block.tokens for found in costs] == [256, 256]
    assert [found.blocks for found in costs] == [30, 12]
    assert [round(found.concurrency(4096 * found.block_bytes), 2) for found in costs] == [136.53, 341.33]


def test_requests_that_fit():
    found = cost("27B", "replay", 15)
    a_request = found.blocks * found.block_bytes
    assert found.fit(a_request) == 0, "vLLM keeps a block for itself"
    assert found.fit(a_request + found.block_bytes) == 1
    assert found.concurrency(a_request) == 1
    assert found.fit(-1) == found.fit(0) == found.concurrency(0) == 0
    assert found.running(100 * a_request, 7) == 7
    assert found.running(100 * a_request, 1024) == found.fit(100 * a_request) == 99


def test_a_windowed_draft_keeps_its_window():
    draft = [
        Attention(layers=4, kv_heads=8, head_dim=128, window=2048),
        Attention(layers=1, kv_heads=8, head_dim=128),
    ]
    setting = CacheSetting(k=15, max_model_len=262144, prefix_caching=False)
    target = read_target(TARGETS["27B"])
    without, found = (footprint(target, "replay", setting, layers) for layers in ((), draft))
    size, tokens = found.layer_block.padded, found.layer_block.tokens
    window = -(-(2047 + 16384) // tokens) + 1
    whole = -(-262144 // tokens)
    assert found.attention - without.attention == (4 * window + whole) * size
    assert found.state == without.state


def test_the_line():
    measured = StateReport(
        state_blocks=1, per_token_state_blocks=16, state=175 * MIB, per_token_state=2592 * MIB,
        recorded_inputs=13 * MIB, max_model_len=1024, fit=41, per_token_fit=4,
    )  # fmt: skip
    assert measured.line() == (
        "Recurrent state: replay, 1 state block per request (per_token: 16): 175 MiB instead of 2592 "
        "MiB per request, recorded inputs 13 MiB of it; 41 requests of 1024 tokens fit instead of 4."
    )


SIZES = st.sampled_from([16, 32, 64, 128, 256])
GEOMETRIES = st.builds(
    lambda heads, repeat, dims, width, state, layers, attention: Target(
        recurrent=Recurrent(
            layers=3 * layers, key_heads=heads, value_heads=heads * repeat, key_dim=dims[0],
            value_dim=dims[1], conv_width=width, model_bytes=2, state_bytes=state,
        ),
        attention=Attention(layers=layers, kv_heads=attention[0], head_dim=attention[1]),
        max_position_embeddings=None,
    ),
    st.integers(1, 32), st.integers(1, 4), st.tuples(SIZES, SIZES), st.integers(2, 5),
    st.sampled_from([2, 4]), st.integers(1, 16), st.tuples(st.integers(1, 8), SIZES),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(target=GEOMETRIES, k=st.integers(1, 32), align=st.booleans())
def test_replay_takes_no_more(target, k, align):
    """Below three draft tokens tiny heads may: a block with records is rounded up to attention's."""
    setting = CacheSetting(k=k, max_model_len=4096, prefix_caching=align)
    per_token, replay = (footprint(target, scheme, setting) for scheme in ("per_token", "replay"))
    assert k < 3 or replay.state <= per_token.state
    assert 0 == per_token.recorded_inputs < replay.recorded_inputs < replay.state
    assert k < 3 or replay.moved < per_token.moved


@settings(max_examples=200, deadline=None)
@given(
    target=GEOMETRIES,
    k=st.integers(0, 31),
    scheme=st.sampled_from(["per_token", "replay"]),
    cpu=st.booleans(),
)
def test_more_drafts_take_more(target, k, scheme, cpu):
    fewer, more = (
        footprint(target, scheme, CacheSetting(k=drafts, max_model_len=4096, cpu=cpu))
        for drafts in (k, k + 1)
    )
    assert fewer.layer_block.raw < more.layer_block.raw <= more.layer_block.padded
    assert fewer.state <= more.state
    assert fewer.moved < more.moved


def test_no_torch_and_no_vllm():
    script = (
        "import sys, vllm_eagle_ext.memory.footprint, vllm_eagle_ext.memory.parameter_count;"
        "print(sorted({'torch', 'vllm', 'numpy', 'transformers'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_state_blocks_as_the_ops_lay_them_out():
    from vllm_eagle_ext.memory.state_blocks import record_width

    recurrent = read_target(TARGETS["27B"], tp=2).recurrent
    assert recurrent.record_width == record_width(8, 128, 24, 128)
    setting = CacheSetting(k=0, max_model_len=1)
    assert layer_block_of(read_target(TARGETS["27B"]), "per_token", setting).raw == 3207168
