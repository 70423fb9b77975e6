"""What a start asks of a config that is half built is what vLLM's whole config says."""

from __future__ import annotations

import pytest

from tests.support.engine import TINY, has_gpu
from tests.support.hybrid import TARGET, dflash, ngram
from vllm_eagle_ext.options import Options
from vllm_eagle_ext.start.ask import draft_request, half_built_config
from vllm_eagle_ext.start.rules.states import choose_scheme, needs_replay
from vllm_eagle_ext.start.rules.vllm_config import device_of, runner_of, schedule_of

pytestmark = pytest.mark.skipif(has_gpu(), reason="asks for what vLLM's CPU platform does")

K = 7
DENSE = {"method": "eagle3", "model": str(TINY / "postnorm"), "num_speculative_tokens": K}
SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 4, K]]}
RANKS = {"data_parallel_size": 2, "distributed_executor_backend": "mp"}


@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize(
    ("target", "drafts", "changes"),
    [
        (TINY / "target", DENSE, {}),
        (TINY / "target", ngram(K), {}),
        (TINY / "target", DENSE, {"kv_offloading_size": 1}),
        (TARGET, dflash(K), {}),
        (TARGET, dflash(K) | SCHEDULE, {}),
        (TARGET, dflash(K) | SCHEDULE, RANKS),
        (TARGET, dflash(K), {"enable_lora": True}),
        (TARGET, dflash(K), {"dtype": "float32"}),
        (TARGET, dflash(K), {"gdn_prefill_backend": "triton"}),
    ],
    ids=str,
)
def test_both_say_the_same(target, drafts, changes, triton, monkeypatch):
    """The runner also as where there is Triton, which makes it V2."""
    from vllm.config import vllm as configs
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    engine_args = EngineArgs(
        model=str(target), speculative_config=drafts, max_model_len=1024, enable_prefix_caching=False,
        **changes,
    )  # fmt: skip
    whole = engine_args.create_engine_config()
    parts = (whole.model_config, whole.parallel_config, whole.speculative_config)
    half = half_built_config(engine_args, *parts)
    monkeypatch.setattr(configs, "HAS_TRITON", triton)
    monkeypatch.setattr("vllm.triton_utils.HAS_TRITON", triton)
    assert runner_of(whole) == runner_of(half)
    request = draft_request(engine_args, whole.model_config, whole.parallel_config, Options())
    assert request.runner == runner_of(whole)
    assert (runner_of(whole) == "v2") is triton
    assert schedule_of(whole) == schedule_of(half)
    assert device_of(whole) == device_of(half)
    assert needs_replay(whole) == needs_replay(half)
    assert choose_scheme(whole, Options()) == choose_scheme(half, Options())
    if connector := whole.kv_transfer_config:
        assert half.kv_transfer_config.kv_connector == connector.kv_connector
