"""Two ranks draft what one does: gates stay with their heads, whatever the layout and the KV heads."""

from __future__ import annotations

import pytest

from tests.support.engine import IN_PROCESS, TIMEOUT_S, engine_environment, run_child
from tests.support.parallel_process import KV_HEADS, LAYOUTS

pytestmark = [pytest.mark.e2e, pytest.mark.long]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    environment = engine_environment("v1") | IN_PROCESS | {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    found, _ = run_child(
        "parallel_process",
        {"folder": tmp_path_factory.mktemp("parallel")},
        environment=environment,
        timeout_s=TIMEOUT_S,
    )
    return found


@pytest.mark.parametrize("kv_heads", KV_HEADS, ids=["kv_replicated", "kv_divided"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ranks_draft_what_one_does(results, layout, kv_heads):
    one, two = (results[f"{layout} {kv_heads} {ranks}"] for ranks in (1, 2))
    assert sum(len(drafts) for drafts in one["recorded"]) > 10
    assert two["recorded"] == one["recorded"]
    assert two["tokens"] == one["tokens"]


@pytest.mark.parametrize("kv_heads", KV_HEADS)
def test_both_layouts_of_one_draft_are_one_draft(results, kv_heads):
    interleaved, concat = (results[f"{layout} {kv_heads} 2"] for layout in LAYOUTS)
    assert interleaved["recorded"] == concat["recorded"]
