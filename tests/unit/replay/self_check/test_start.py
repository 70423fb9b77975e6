"""What a worker makes of its self-check: real targets and layers on two ranks, without an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.engine import ROOT, engine_environment, has_gpu

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(has_gpu(), reason="breaks vLLM's CPU kernels"),
]
K, BROKEN_RANK = 7, 1


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What both ranks found, by the state that was asked for; the kernels of one of them are broken."""
    folder = tmp_path_factory.mktemp("ranks")
    started = []
    for rank in (0, 1):
        job, result = folder / f"job{rank}.json", folder / f"result{rank}.json"
        job.write_text(json.dumps({
            "rank": rank, "ranks": 2, "rendezvous": str(folder / "rendezvous"),
            "states": ["auto", "replay", "per_token"],
            "broken": "other beta" if rank == BROKEN_RANK else None,
        }))  # fmt: skip
        command = [sys.executable, "-m", "tests.support.self_check_process", str(job), str(result)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=dict(os.environ) | engine_environment("v1"), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        started.append((process, result))
    facts = []
    for process, result in started:
        printed, _ = process.communicate(timeout=400)
        assert process.returncode == 0, printed[-6000:]
        facts.append(json.loads(result.read_text()))
    return facts


def test_a_rank_that_fails_leaves_all_ranks_with_vllms_scheme(ranks):
    """In every respect: the class of target and layers, how they run, their blocks, the class that vLLM
    sizes blocks by, and the key of compiled graphs, which is not replay's."""
    for facts in ranks:
        left, stock = facts["auto"], facts["per_token"]
        assert left["blocks"] == K
        assert left["layers"] == {"QwenGatedDeltaNetAttention": 6}
        assert left["other_graphs"]
        unlike = {"log", "other_graphs"}
        assert {k: v for k, v in left.items() if k not in unlike} == {
            k: v for k, v in stock.items() if k not in unlike
        }


def test_the_log_says_so_once_and_with_figures(ranks):
    first, other = (facts["auto"]["log"] for facts in ranks)
    assert other == []
    (line,) = first
    print(f"\n{line}")
    assert line.startswith(
        "ERROR vllm-eagle-ext: Self-check of replay FAILED: rank 1: sequential kernels, 1/2 heads"
    )
    assert "states: " in line
    assert "values differ, by up to " in line
    assert "vLLM's own scheme per_token runs instead" in line
    assert "vllm-eagle selftest --out" in line


def test_an_explicit_choice_is_refused_on_all_ranks(ranks):
    for facts in ranks:
        error = facts["replay"]["error"]
        assert error.startswith("HybridStateError: vllm-eagle-ext: self-check of replay's kernels is ")
        assert "rank 1: sequential kernels" in error
        assert "values differ, by up to " in error
        assert "hybrid_state 'replay', replay_kernels or enable_adaptive_verification" in error
        assert "leave out what of these is set" in error
        assert "hybrid_state is 'per_token' then" in error
    print(f"\n{ranks[0]['replay']['error']}")
