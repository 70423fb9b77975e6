"""Figures worked out by hand for published targets, and rules that hold for any target."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.memory.configs import TARGETS
from vllm_eagle_ext.memory.footprint import (
    MIB,
    CacheSetting,
    Footprint,
    footprint,
    moved_per_step,
    savings_line,
)  # fmt: skip
from vllm_eagle_ext.memory.geometry import Attention, Recurrent, Target, read_target
from vllm_eagle_ext.memory.state_blocks import state_blocks

CACHED = "block boundary of prefix caching"


def cost(name, scheme, k, *, prefix_caching=False, length=1024, **options):
    setting = CacheSetting(k=k, max_model_len=length, prefix_caching=prefix_caching, **options)
    return footprint(read_target(TARGETS[name]), scheme, setting)


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


def test_requests_that_fit():
    need = cost("27B", "replay", 15)
    a_request = need.blocks * need.block_bytes
    assert need.fit(a_request) == 0, "vLLM keeps a block for itself"
    assert need.fit(a_request + need.block_bytes) == 1
    assert need.concurrency(a_request) == 1
    assert need.fit(-1) == need.fit(0) == need.concurrency(0) == 0
    assert need.running(100 * a_request, 7) == 7
    assert need.running(100 * a_request, 1024) == need.fit(100 * a_request) == 99


def test_the_line():
    replay, per_token = (
        Footprint(block_bytes=1, blocks=blocks, state_blocks=states, state=state * MIB,
                  recorded_inputs=recorded * MIB)
        for blocks, states, state, recorded in ((1, 1, 175, 13), (10, 16, 2592, 0))
    )  # fmt: skip
    assert savings_line(replay, per_token, budget=42, length=1024) == (
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
    assert fewer.unpadded < more.unpadded <= more.padded
    assert fewer.state <= more.state
    assert fewer.moved < more.moved
