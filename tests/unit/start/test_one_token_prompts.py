"""Which starts get the scheduler that keeps prompts of one token as they are."""

from __future__ import annotations

import pytest

from tests.support.engine import TINY, has_gpu
from tests.support.hybrid import TARGET, dflash, ngram
from vllm_eagle_ext.start.rules.speculative import SCHEDULER

pytestmark = pytest.mark.skipif(has_gpu(), reason="asks for what vLLM's CPU platform does")

K = 7
OTHER = "vllm.v1.core.sched.scheduler.Scheduler"
SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 4, K]]}
DENSE = {"method": "eagle3", "model": str(TINY / "postnorm"), "num_speculative_tokens": 4}


@pytest.fixture
def engine_args(monkeypatch):
    import vllm.plugins
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    monkeypatch.setattr(vllm.plugins, "plugins_loaded", False)

    def make(drafts, target=TARGET, **changes):
        given = {"enable_prefix_caching": False, "max_model_len": 1024} | changes
        return EngineArgs(model=str(target), speculative_config=drafts, **given)

    return make


def scheduler_of(engine_args):
    return engine_args.create_engine_config().scheduler_config.scheduler_cls


@pytest.mark.parametrize(
    ("drafts", "changes", "expected"),
    [
        (dflash(K), {}, SCHEDULER),
        (ngram(K), {}, SCHEDULER),
        (dflash(2), {}, SCHEDULER),  # one state block per draft token
        (dflash(K) | SCHEDULE, {}, None),  # vLLM pads nothing
        (dflash(K) | SCHEDULE, {"data_parallel_size": 2}, SCHEDULER),  # vLLM drops the schedule
        (dflash(K), {"additional_config": {"eagle_ext": {"enabled": False}}}, None),
        (None, {}, None),
        (DENSE, {"target": TINY / "target"}, None),
    ],
    ids=["replay", "ngram", "per token", "schedule", "ranks", "off", "no draft", "dense"],
)
def test_the_scheduler(drafts, changes, expected, engine_args):
    assert scheduler_of(engine_args(drafts, **changes)) == expected


def test_another_scheduler_stays_with_a_warning(engine_args, vllm_log):
    assert scheduler_of(engine_args(dflash(K), scheduler_cls=OTHER)) == OTHER
    (record,) = vllm_log.containing(f"scheduler_cls is {OTHER!r}")
    assert "this package's scheduler does not" in record.getMessage()


def test_the_next_start_with_these_arguments_has_vllms_own(engine_args):
    args = engine_args(dflash(K))
    assert scheduler_of(args) == SCHEDULER
    args.speculative_config = None
    assert scheduler_of(args) is None
    args.speculative_config = dflash(K)
    assert scheduler_of(args) == SCHEDULER


def test_a_draft_window_leaves_nothing_in_the_arguments(engine_args):
    args = engine_args(DENSE, TINY / "target", additional_config={"eagle_ext": {"draft_window": 64}})
    off = [args.create_engine_config().scheduler_config.disable_hybrid_kv_cache_manager]
    args.additional_config = {}
    off.append(args.create_engine_config().scheduler_config.disable_hybrid_kv_cache_manager)
    assert off == [True, False]


def test_what_the_user_sets_between_two_starts_is_kept(engine_args):
    args = engine_args(dflash(K))
    args.create_engine_config()
    args.scheduler_cls = OTHER
    assert scheduler_of(args) == OTHER
