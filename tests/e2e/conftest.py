"""Engines are slow to start: each configuration runs once per session, and tests read its result."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from filelock import FileLock

from tests.support.dense import FLOAT32, STOCK, dense
from tests.support.engine import TINY
from tests.support.hybrid import TARGET, started, with_log
from vllm_eagle_ext.measure.reference.dflash import DFlashReference
from vllm_eagle_ext.measure.reference.eagle3 import Eagle3Reference
from vllm_eagle_ext.measure.reference.published import embeddings_and_head, load_target


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
def dflash_walk(hybrid_target) -> DFlashReference:
    return DFlashReference.load(TINY / "dflash", *embeddings_and_head(hybrid_target))


@pytest.fixture(scope="session")
def plain(prompts, long_prompt):
    """Stock vLLM without a draft and without the plugin; the long prompt comes last."""
    return started([dense("plain", prompts=[*prompts, long_prompt], logprobs=5)], **STOCK)["plain"]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, worker_id) -> Callable[[str, Callable[[], Any]], Any]:
    """Reads what another process of this run has made, or makes it and keeps it for the others."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder if worker_id == "master" else folder.parent

    def read_or_make(name: str, make: Callable[[], Any]) -> Any:
        file = folder / f"{name}.json"
        with FileLock(f"{file}.lock"):
            if not file.exists():
                file.write_text(json.dumps(make()))
        return json.loads(file.read_text())

    return read_or_make


@pytest.fixture(scope="session")
def in_float32(prompts, long_prompt, made_once):
    """Results by name, and the log, of engines without a draft and with each pair's, in one process.

    No near-ties there, whatever kernels the CPU has; the long prompt comes last."""
    texts = {"prompts": [*prompts, long_prompt], "engine_args": FLOAT32, "concurrency": None}
    drafts = [dense(name, name, **texts) for name in ("postnorm", "native", "gated")]
    return made_once("in_float32", lambda: with_log([dense("plain", **texts), *drafts]))


@pytest.fixture(scope="session")
def v2_in_float32(prompts):
    """The V2 runner on a few tokens: Triton's interpreter is slow."""
    few = {"prompts": prompts[:4], "max_tokens": 12, "engine_args": FLOAT32}
    results, log = with_log([dense("postnorm", "postnorm", **few)], "v2")
    return results["postnorm"], log


@pytest.fixture(scope="session")
def v1(prompts):
    """Each pair in bf16, and the log."""
    texts = {"postnorm": prompts, "native": prompts[:40], "gated": prompts}
    return with_log([dense(name, name, prompts=own) for name, own in texts.items()])


@pytest.fixture(scope="session")
def v2(prompts):
    """The V2 runner: its Triton kernels run under the interpreter where there is no GPU."""
    few = {"prompts": prompts[:20]}
    states = dense("postnorm", "postnorm", state_prompt=prompts[0], **few)
    return with_log([states, dense("gated", "gated", **few)], "v2")
