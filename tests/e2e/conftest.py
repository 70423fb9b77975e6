"""Engines are slow to start: each configuration runs once per session, and tests read its result."""

from __future__ import annotations

import json

import pytest

from tests.support.engine import TINY, EngineResult, EngineRun, run_engine
from tests.support.hybrid import TARGET, HybridRun, run_all
from vllm_eagle_ext.measure.reference.eagle3 import Eagle3Reference
from vllm_eagle_ext.measure.reference.target_states import load_target
from vllm_eagle_ext.measure.reference.walk import DFlashWalk

K = 4
# Of 12 layers. The config of the post-norm pair nests the outputs of layers 1, 3, 5, 7, 9.
POSTNORM_AUX_LAYERS = (2, 4, 6, 8, 10)
NATIVE_AUX_LAYERS = (2, 6, 9)
MAX_TOKENS = 64


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Token ids of the held-out excerpts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY / "target")
    lines = (TINY / "prompts.jsonl").read_text().splitlines()
    return [tokenizer(json.loads(line)["text"])["input_ids"] for line in lines]


@pytest.fixture(scope="session")
def long_prompt(prompts) -> list[int]:
    """Longer than one prefill chunk of the server's tests."""
    return [token for prompt in prompts for token in prompt][:600]


@pytest.fixture(scope="session")
def target():
    return load_target(TINY / "target")


def load_reference(target, name: str) -> Eagle3Reference:
    return Eagle3Reference.load(
        TINY / name, target.model.embed_tokens.weight.data, target.lm_head.weight.data
    )


@pytest.fixture(scope="session")
def postnorm_reference(target) -> Eagle3Reference:
    return load_reference(target, "postnorm")


@pytest.fixture(scope="session")
def gated_reference(target) -> Eagle3Reference:
    return load_reference(target, "gated")


@pytest.fixture(scope="session")
def native_reference(target) -> Eagle3Reference:
    return load_reference(target, "native")


@pytest.fixture(scope="session")
def hybrid_target():
    return load_target(TARGET)


@pytest.fixture(scope="session")
def dflash_walk(hybrid_target) -> DFlashWalk:
    return DFlashWalk.load(TINY / "dflash", hybrid_target)


@pytest.fixture(scope="session")
def plain(prompts, long_prompt) -> EngineResult:
    """Stock vLLM without a draft and without the plugin; the long prompt comes last."""
    run = EngineRun(
        prompts=[*prompts, long_prompt],
        max_tokens=MAX_TOKENS,
        logprobs=5,
        environment={"VLLM_PLUGINS": ""},
    )
    return run_engine(run)


IN_FLOAT32 = {"engine_args": {"dtype": "float32"}, "target": TINY / "target"}


def drafted_in_float32(name: str, **changes) -> HybridRun:
    speculative = {"method": "eagle3", "model": str(TINY / name), "num_speculative_tokens": K}
    return HybridRun(name, speculative=speculative, record=True, **IN_FLOAT32, **changes)


@pytest.fixture(scope="session")
def in_float32(prompts, long_prompt):
    """Results by name, and the log, of engines without a draft and with each pair's, in one process.

    No near-ties there, whatever kernels the CPU has; the long prompt comes last."""
    texts = {"prompts": [*prompts, long_prompt], "max_tokens": MAX_TOKENS}
    drafts = [drafted_in_float32(name, **texts) for name in ("postnorm", "native", "gated")]
    results, log = run_all([HybridRun("plain", **texts, **IN_FLOAT32), *drafts])
    for name, result in results.items():
        assert "error" not in result, f"{name}: {result['trace'][-3000:]}"
    return results, log


@pytest.fixture(scope="session")
def v2_in_float32(prompts):
    """The V2 runner on a few tokens: Triton's interpreter is slow."""
    few = {"prompts": prompts[:4], "max_tokens": 12}
    results, log = run_all([drafted_in_float32("postnorm", **few)], "v2")
    assert "error" not in results["postnorm"], results["postnorm"]["trace"][-3000:]
    return results["postnorm"], log


@pytest.fixture(scope="session")
def v1_postnorm(prompts) -> EngineResult:
    run = EngineRun(
        prompts=prompts, max_tokens=MAX_TOKENS, draft=TINY / "postnorm", k=K, record_drafts=True
    )
    return run_engine(run)


@pytest.fixture(scope="session")
def v1_native(prompts) -> EngineResult:
    run = EngineRun(
        prompts=prompts[:40], max_tokens=MAX_TOKENS, draft=TINY / "native", k=K, record_drafts=True
    )
    return run_engine(run)


@pytest.fixture(scope="session")
def v1_gated(prompts) -> EngineResult:
    run = EngineRun(
        prompts=prompts, max_tokens=MAX_TOKENS, draft=TINY / "gated", k=K, record_drafts=True
    )
    return run_engine(run)


@pytest.fixture(scope="session")
def v2_gated(prompts) -> EngineResult:
    run = EngineRun(
        prompts=prompts[:20],
        max_tokens=MAX_TOKENS,
        draft=TINY / "gated",
        k=K,
        runner="v2",
        concurrency=10,
        record_drafts=True,
    )
    return run_engine(run)


@pytest.fixture(scope="session")
def v2_postnorm(prompts) -> EngineResult:
    """The V2 runner: its Triton kernels run under the interpreter where there is no GPU."""
    run = EngineRun(
        prompts=prompts[:20],
        max_tokens=MAX_TOKENS,
        draft=TINY / "postnorm",
        k=K,
        runner="v2",
        concurrency=10,
        record_drafts=True,
        state_prompt=prompts[0],
    )
    return run_engine(run)
