"""Engines are slow to start: each configuration runs once per session, and tests read its result."""

from __future__ import annotations

import json

import pytest

from tests.support.engine import TINY, EngineResult, EngineRun, run_engine
from vllm_eagle_ext.measure.reference.eagle3 import Eagle3Reference
from vllm_eagle_ext.measure.reference.target_states import load_target

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
def plain(prompts, long_prompt) -> EngineResult:
    """Stock vLLM without a draft and without the plugin; the long prompt comes last."""
    run = EngineRun(
        prompts=[*prompts, long_prompt],
        max_tokens=MAX_TOKENS,
        logprobs=5,
        environment={"VLLM_PLUGINS": ""},
    )
    return run_engine(run)


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
