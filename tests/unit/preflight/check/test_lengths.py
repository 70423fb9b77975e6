"""`vllm-eagle check` and what decides how many tokens a step drafts."""

from __future__ import annotations

import pytest

from tests.support.drafts import valid_draft, write
from tests.support.engine import TINY
from tests.unit.cli.output import serve_line
from vllm_eagle_ext.preflight import platforms
from vllm_eagle_ext.preflight.check import CheckRequest, run_check

HYBRID_ON_CPU = ("--target", str(TINY / "hybrid_target"), "--platform", "cpu")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ("--speculative", '{"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 32, 2]]}'),
            "num_speculative_tokens_per_batch_size is [[1, 8, 4], [9, 32, 2]]",
        ),
        (("--speculative", '{"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 32, 0]]}'), None),
        ((), None),
    ],
    ids=str,
)
def test_lengths_of_drafts_that_are_made_in_parallel(check, tmp_path, asked, said):
    """On a CPU, so on V1, which makes K tokens whatever the step asks for; with 0 it reads none."""
    parallel = write(valid_draft("p-eagle"), tmp_path / "parallel")
    result = check(parallel, "-k", "4", "--platform", "cpu", *asked)
    assert result.exit_code == int(said is not None), result.stdout
    assert ("shorter_drafts_stay_apart" in result.stdout) is (said is not None)
    assert said is None or said in result.stdout


def test_a_schedule_is_checked_and_printed(check, draft):
    schedule = '{"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 32, 0]]}'
    result = check(draft, "-k", "4", "--speculative", schedule)
    assert result.exit_code == 0
    printed = serve_line(result)[1]["--speculative-config"]
    assert printed["num_speculative_tokens_per_batch_size"] == [[1, 8, 4], [9, 32, 0]]


@pytest.mark.parametrize(("release", "served"), [("0.32.0", False), ("0.33.0", True)])
def test_short_drafts_on_a_cpu_by_release(check, monkeypatch, release, served):
    """Which is the release that would serve, whatever is installed."""
    monkeypatch.setattr(platforms, "installed_vllm", lambda: release)
    schedule = '{"num_speculative_tokens_per_batch_size": [[1, 8, 7], [9, 32, 2]]}'
    asked = ("--speculative", schedule, "--eagle-ext", '{"hybrid_state": "per_token"}')
    result = check(TINY / "dflash", *HYBRID_ON_CPU, "-k", "7", *asked, "--quick")
    assert result.exit_code == (3 if served else 1), result.stdout
    said = "error state_can_be_kept: speculative_config.num_speculative_tokens_per_batch_size is [[1, 8,"
    assert (said in result.stdout) is not served


@pytest.mark.parametrize(
    ("target", "key", "warned"),
    [("target", False, True), ("target", True, True), ("hybrid_target", False, True),
     ("hybrid_target", True, False)],
)  # fmt: skip
def test_adaptive_verification_without_use_is_a_warning(target, key, warned):
    draft = {"target": "postnorm", "hybrid_target": "dflash"}[target]
    request = CheckRequest(
        draft=str(TINY / draft), target=str(TINY / target), platform="cuda",
        options={"adaptive_verification": True}, speculative={"enable_adaptive_verification": key},
    )  # fmt: skip
    result = run_check(request)
    assert result.exit_code == 0, result.inspection.errors
    found = [f.rule for f in result.inspection.warnings]
    assert ("adaptive_option_is_used" in found) is warned


@pytest.mark.parametrize(
    ("target", "platform_", "warned"),
    [("hybrid_target", "cuda", True), ("hybrid_target", "cpu", False), ("target", "cuda", False)],
)
def test_states_that_vllm_saves_too_late_are_warned_of(target, platform_, warned):
    """The platform decides the runner."""
    draft = {"target": "postnorm", "hybrid_target": "dflash"}[target]
    request = CheckRequest(
        engine={"kv_offloading_size": 1.0, "enable_prefix_caching": False},
        options={}, k={"postnorm": 4, "dflash": 7}[draft],
        draft=str(TINY / draft), target=str(TINY / target), platform=platform_,
    )  # fmt: skip
    result = run_check(request)
    assert result.exit_code == 0, result.inspection.errors
    assert ("states_are_saved_in_time" in [f.rule for f in result.inspection.warnings]) is warned
