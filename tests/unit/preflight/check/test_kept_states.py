"""How `vllm-eagle check` says that a hybrid target's states will be kept."""

from __future__ import annotations

import json

import pytest

from tests.support import published
from tests.support.engine import TINY
from tests.unit.memory.configs import config
from tests.unit.plan.inputs import write_config
from vllm_eagle_ext.plan.request import PlanRequest
from vllm_eagle_ext.plan.run import run_plans
from vllm_eagle_ext.preflight import platforms

HYBRID = ("--target", str(TINY / "hybrid_target"))
BLOCKS, CACHED = "state blocks per request (committed state", "block boundary of prefix caching"


@pytest.mark.parametrize(
    ("asked", "k", "kept"),
    [
        ("auto", "1", f"per_token, 3 {BLOCKS}, 1 draft token, {CACHED}); 1 draft token saves"),
        ("auto", "3", f"replay, 2 {BLOCKS}, {CACHED}); 3 draft tokens"),
        ("per_token", "7", f"per_token, 9 {BLOCKS}, 7 draft tokens, {CACHED}); additional_config"),
        ("replay", "2", f"replay, 2 {BLOCKS}, {CACHED}); additional_config"),
    ],
)
def test_how_states_are_kept(check, monkeypatch, asked, k, kept):
    monkeypatch.setattr(platforms, "installed_vllm", lambda: "0.32.0")
    options = json.dumps({"hybrid_state": asked})
    result = check(TINY / "dflash", *HYBRID, "-k", k, "--eagle-ext", options)
    assert f"recurrent state   {kept}" in result.stdout
    said = json.loads(check(TINY / "dflash", *HYBRID, "-k", k, "--eagle-ext", options, "--json").stdout)
    assert said["recurrent_state"].startswith(kept)


def test_how_states_are_kept_on_a_cpu(check):
    """Few drafts replay too: short rows are misplaced otherwise. No prefix cache is to be had there."""
    result = check(TINY / "dflash", *HYBRID, "--platform", "cpu", "-k", "2")
    assert (
        f"recurrent state   replay, 2 {BLOCKS}, CPU scratch); 2 draft tokens, on a CPU" in result.stdout
    )
    assert "short_rows_are_served" not in result.stdout


def test_one_state_block_per_token_on_a_cpu_is_warned_of(check, monkeypatch):
    monkeypatch.setattr(platforms, "installed_vllm", lambda: "0.32.0")
    asked = ("--eagle-ext", '{"hybrid_state": "per_token"}')
    result = check(TINY / "dflash", *HYBRID, "--platform", "cpu", "-k", "2", *asked, "--json")
    (found,) = [
        one for one in json.loads(result.stdout)["findings"] if one["rule"] == "short_rows_are_served"
    ]
    assert (found["severity"], found["remedy"]) == ("warning", "leave the option out")


@pytest.mark.parametrize(
    ("state", "kernels", "served"),
    [("replay", "chunked", False), ("replay", "sequential", True), ("per_token", "chunked", True)],
)
def test_chunked_kernels_on_a_cpu(check, state, kernels, served):
    """A start refuses them where it replays; with one state block per draft token nobody asks."""
    options = json.dumps({"hybrid_state": state, "replay_kernels": kernels})
    result = check(TINY / "dflash", *HYBRID, "--platform", "cpu", "-k", "7", "--eagle-ext", options)
    assert result.exit_code == int(not served), result.stdout
    said = "error state_can_be_kept: additional_config.eagle_ext.replay_kernels is 'chunked'"
    assert (said in result.stdout) is not served


@pytest.mark.parametrize(("release", "exports"), [("0.32.0", False), ("0.33.0", True)])
@pytest.mark.parametrize(
    ("gpu", "device"), [(None, "sm_90"), ("8.0", "sm_80"), ("12.0", "sm_120"), ("[N/A]", "sm_90")]
)
def test_as_many_state_blocks_as_the_plan_counts(
    check, monkeypatch, tmp_path, release, exports, gpu, device
):
    """By the release that is installed and the GPU that the driver names, else a Hopper's."""
    monkeypatch.setattr(platforms, "installed_vllm", lambda: release)
    monkeypatch.setenv("PATH", str(tmp_path))
    if gpu:
        driver = tmp_path / "nvidia-smi"
        driver.write_text(f"#!/bin/sh\necho '{gpu}'\necho '{gpu}'\n")
        driver.chmod(0o755)
    hybrid = write_config(tmp_path / "27b", config("qwen3_6_27b"))
    wanted = PlanRequest(target=str(hybrid), gpu_mem=140.0, vllm=release, device=device)
    (planned,) = run_plans(wanted, [7])
    (dflash,) = (c for c in published.published() if c.slug == "zlab_qwen3_6_27b")
    found = published.materialise(dflash, tmp_path / "draft")
    shown = json.loads(check(found, "--target", str(hybrid), "-k", "7", "--json").stdout)
    blocks = planned.taken.state_blocks
    assert blocks == 2 + (exports and device != "sm_80")
    assert shown["recurrent_state"].startswith(f"{planned.auto}, {blocks} state blocks per request (")
    assert shown["recurrent_state"].endswith(planned.why)
