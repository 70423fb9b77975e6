"""Trained drafts quantised, beside targets that are not, and the other way round: texts are those
without a draft, and about as much is accepted. compressed-tensors' own compressor writes the files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.support.batches import Batch, Engine, eagle3, run_engines
from tests.support.drafts import Draft
from tests.support.engine import TINY, has_gpu
from tests.support.hybrid import TARGET as HYBRID
from tests.support.hybrid import dflash
from tests.support.near_ties import assert_only_near_ties
from tests.support.quantised_drafts import quantised
from vllm_eagle_ext.memory.device import LoadedKernels

KERNELS = LoadedKernels()
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(
        not has_gpu() and not (KERNELS.packed_weights and KERNELS.exact_int8),
        reason="vLLM has no kernels for W4A16 or W8A8 on this CPU",
    ),
]

W8A8, W4A16, ONLINE = "compressed-tensors W8A8", "compressed-tensors W4A16", "fp8_per_channel"
REPLAY = {"hybrid_state": "replay"}
# An engine with a draft -> the one without, and the one whose draft or target is plain.
PAIRS = {
    "W8A8 draft": ("none", "plain"),
    "W4A16 draft": ("none", "plain"),
    "draft quantised online": ("none", "plain"),
    "W8A8 target": ("W8A8 target, none", "plain"),
    "hybrid, W4A16 draft": ("hybrid, none", "hybrid, plain"),
}


def as_quantised(source: Path, format_: str, folder: Path) -> Path:
    """A copy of a checkpoint of ours, its projections in this format."""
    shutil.copytree(source, folder)
    tensors: dict[str, Any] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
        file.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    draft = quantised(Draft(config, tensors, "", 0), format_).draft
    (folder / "config.json").write_text(json.dumps(draft.config))
    save_file(
        {name: tensor.contiguous() for name, tensor in draft.tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return folder


@pytest.fixture(scope="module")
def results(prompts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantised")
    texts = [Batch("texts", prompts[:12], max_tokens=40, logprobs=5)]
    draft = eagle3("postnorm", 4)

    def quantised_draft(name: str, format_: str) -> str:
        return str(as_quantised(TINY / name, format_, folder / f"{name} {format_}"))

    target = as_quantised(TINY / "target", W8A8, folder / "target")
    hybrid = {"model": quantised_draft("dflash", W4A16)}
    engines = [
        Engine("none", texts),
        Engine("plain", texts, draft),
        Engine("W8A8 draft", texts, draft | {"model": quantised_draft("postnorm", W8A8)}),
        Engine("W4A16 draft", texts, draft | {"model": quantised_draft("postnorm", W4A16)}),
        Engine("draft quantised online", texts, draft | {"quantization": ONLINE}),
        Engine("W8A8 target, none", texts, target=target),
        Engine("W8A8 target", texts, draft, target=target),
        Engine("hybrid, none", texts, target=HYBRID),
        Engine("hybrid, plain", texts, dflash(7), {}, REPLAY, HYBRID),
        Engine("hybrid, W4A16 draft", texts, dflash(7) | hybrid, {}, REPLAY, HYBRID),
    ]
    return {name: batches["texts"] for name, batches in run_engines(engines).items()}


@pytest.fixture(scope="module")
def on_v2(prompts, tmp_path_factory):
    """Four texts: Triton's interpreter is slow."""
    texts = [Batch("texts", prompts[:4], max_tokens=40, logprobs=5)]
    draft, folder = eagle3("postnorm", 4), tmp_path_factory.mktemp("v2") / "postnorm"
    w4a16 = {"model": str(as_quantised(TINY / "postnorm", W4A16, folder))}
    engines = [
        Engine("none", texts), Engine("plain", texts, draft), Engine("W4A16", texts, draft | w4a16),
    ]  # fmt: skip
    return {name: batches["texts"] for name, batches in run_engines(engines, "v2").items()}


def acceptance_length(result: Any) -> float:
    counters = result["counters"]
    return 1 + counters["spec_decode_num_accepted_tokens"] / counters["spec_decode_num_drafts"]


@pytest.mark.parametrize("name", PAIRS)
def test_texts_are_those_without_a_draft(results, name):
    plain = results[PAIRS[name][0]]
    assert_only_near_ties(plain, results[name]["tokens"], name)


@pytest.mark.parametrize("name", PAIRS)
def test_about_as_much_is_accepted(results, name):
    assert_as_much_is_accepted(results[name], results[PAIRS[name][1]])


def assert_as_much_is_accepted(quantised: Any, plain: Any) -> None:
    tau, whole = acceptance_length(quantised), acceptance_length(plain)
    print(f"\n{tau:.2f} tokens a step, {whole:.2f} with plain weights")
    assert tau > 0.9 * whole
    assert quantised["placed"] != plain["placed"]


@pytest.mark.v2
def test_a_quantised_draft_on_v2(on_v2):
    assert_only_near_ties(on_v2["none"], on_v2["W4A16"]["tokens"], "W4A16 on V2")
    assert_as_much_is_accepted(on_v2["W4A16"], on_v2["plain"])
