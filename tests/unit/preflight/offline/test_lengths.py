"""`vllm-eagle check` and what decides how many tokens a step drafts."""

from __future__ import annotations

import pytest

from tests.support.drafts import valid_draft, write
from tests.support.engine import TINY
from tests.unit.cli.output import serve_line
from vllm_eagle_ext.preflight.offline import platform
from vllm_eagle_ext.preflight.offline.run import CheckRequest, run_check

HYBRID_ON_CPU = ("--target", str(TINY / "hybrid_target"), "--platform", "cpu")


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"scheduler_cls": "my.Scheduler"}, ["--scheduler-cls", "'my.Scheduler'"]),
        ({"data_parallel_size": 2}, ["data_parallel_size", "is 2"]),
        ({"pipeline_parallel_size": 2}, ["pipeline_parallel_size", "is 2"]),
        ({"max_num_seqs": 3}, ["--max-num-seqs", "at least 4"]),
        ({"max_num_seqs": 4}, []),
    ],
    ids=str,
)  # fmt: skip
def test_engines_that_cannot_choose_lengths(draft, target, engine, words):
    """As `bench` and `verify` check them; by the rules of a start."""
    asked = {"draft": str(draft), "target": str(target), "k": 4, "platform": "cuda"}
    for options, expected in (({"draft_length": "auto"}, words), ({}, [])):
        found = run_check(CheckRequest.for_engine(engine, options=options, **asked)).inspection.errors
        assert len(found) == bool(expected)
        for word in expected:
            assert word in str(found[0].problem)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--eagle-ext", '{"draft_length": "auto"}'), "draft_lengths is [0, 1, 2, 4]"),
        (
            ("--eagle-ext", '{"draft_length": "auto", "draft_lengths": [2, 4]}'),
            "draft_lengths is [2, 4]",
        ),
        (("--eagle-ext", '{"draft_length": "auto", "draft_lengths": [0, 4]}'), None),
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
    refused = check(
        draft, "-k", "4", "--speculative", schedule, "--eagle-ext", '{"draft_length": "auto"}'
    )
    assert refused.exit_code == 1
    assert (
        "error engine_chooses_lengths: speculative_config.num_speculative_tokens_per" in refused.stdout
    )


@pytest.mark.parametrize(("release", "served"), [("0.32.0", False), ("0.33.0", True)])
def test_short_drafts_on_a_cpu_by_release(check, monkeypatch, release, served):
    """Which is the release that would serve, whatever is installed."""
    monkeypatch.setattr(platform, "installed_vllm", lambda: release)
    asked = ("-k", "7", "--eagle-ext", '{"draft_length": "auto", "hybrid_state": "per_token"}')
    result = check(TINY / "dflash", *HYBRID_ON_CPU, *asked)
    assert result.exit_code == int(not served), result.stdout
    assert ("error state_can_be_kept: additional_config.eagle_ext.draft_length is 'auto'"
            in result.stdout) is not served  # fmt: skip


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
    ("engine", "words"),
    [
        ({}, None),
        ({"kv_transfer_config": {"kv_connector": "LMCacheConnector"}}, "with LMCacheConnector"),
        ({"kv_offloading_size": 1.0, "kv_offloading_backend": "native"}, "with OffloadingConnector"),
    ],
    ids=["none", "connector", "offloading"],
)
def test_a_draft_whose_cache_is_moved_may_not_sleep(engine, words):
    """As `bench` and `verify` check it; vLLM makes a connector of offloading at the start."""
    request = CheckRequest.for_engine(
        engine | {"enable_prefix_caching": False},
        options={"draft_length": "auto", "draft_off": "sleep"},
        draft=str(TINY / "dflash"), target=str(TINY / "hybrid_target"), k=7, platform="cpu",
    )  # fmt: skip
    found = [str(finding.problem) for finding in run_check(request).inspection.errors]
    asleep = [problem for problem in found if "draft_off" in problem]
    assert len(asleep) == (words is not None)
    assert all(words in problem for problem in asleep)


@pytest.mark.parametrize(
    ("target", "platform_", "warned"),
    [("hybrid_target", "cuda", True), ("hybrid_target", "cpu", False), ("target", "cuda", False)],
)
def test_states_that_vllm_saves_too_late_are_warned_of(target, platform_, warned):
    """The platform decides the runner."""
    draft = {"target": "postnorm", "hybrid_target": "dflash"}[target]
    request = CheckRequest.for_engine(
        {"kv_offloading_size": 1.0, "enable_prefix_caching": False},
        options={}, k={"postnorm": 4, "dflash": 7}[draft],
        draft=str(TINY / draft), target=str(TINY / target), platform=platform_,
    )  # fmt: skip
    result = run_check(request)
    assert result.exit_code == 0, result.inspection.errors
    assert ("states_are_saved_in_time" in [f.rule for f in result.inspection.warnings]) is warned
