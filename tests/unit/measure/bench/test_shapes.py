"""The made-up pairs of benchmarks/gpu_shapes.py, at every scale, are what the preflight accepts."""

from __future__ import annotations

import pytest
import torch

from benchmarks.shapes.dense import LLAMA_8B
from benchmarks.shapes.hybrid import QWEN_27B
from vllm_eagle_ext.draft import TargetFacts, inspect_draft
from vllm_eagle_ext.draft.draft_files import DraftFiles
from vllm_eagle_ext.draft.headers import TensorHeader
from vllm_eagle_ext.draft.spec import DraftRequest
from vllm_eagle_ext.draft.tensors import canonical_name

DTYPES = {torch.bfloat16: "BF16", torch.int64: "I64", torch.bool: "BOOL"}
KINDS = {"native": {}, "postnorm": {"post_norm": True}, "gated": {"post_norm": True, "gated": True}}


def inspect(target, config, tensors, method):
    headers = {
        canonical_name(name): TensorHeader(tuple(tensor.shape), DTYPES[tensor.dtype])
        for name, tensor in tensors.items()
    }
    values = {n: tensors[n].numpy().tobytes() for n in ("d2t", "t2d") if n in tensors}
    files = DraftFiles("made up", config, "safetensors", headers, values)
    return inspect_draft(
        files, TargetFacts.from_config(target), DraftRequest(method=method, k=5, max_model_len=1024)
    )


@pytest.fixture
def weightless(monkeypatch):
    """A draft of true size without its bytes."""

    def made(shapes):
        return {n: torch.empty(s, dtype=torch.bfloat16, device="meta") for n, s in shapes.items()}

    for module in ("dense", "hybrid"):
        monkeypatch.setattr(f"benchmarks.shapes.{module}.random_weights", made)


@pytest.mark.parametrize("scale", ["real", "cpu", "tiny"])
@pytest.mark.parametrize("kind", KINDS)
def test_eagle3_drafts_would_be_served(scale, kind, weightless):
    shape, flags = LLAMA_8B[scale], KINDS[kind]
    inspection = inspect(shape.target(), shape.draft(**flags), shape.tensors(**flags), "eagle3")
    assert inspection.errors == []
    spec = inspection.spec
    assert spec.fc_norm.value == bool(flags)
    assert (spec.gate is not None) == ("gated" in flags)
    assert len(spec.aux_layers.layer_ids) == (5 if flags else 3)
    assert spec.vocabulary.size == shape.draft_vocabulary


@pytest.mark.parametrize("scale", ["real", "tiny"])
def test_a_dflash_draft_would_be_served(scale, weightless):
    shape = QWEN_27B[scale]
    inspection = inspect(shape.target(), shape.draft(), shape.tensors(), "dflash")
    assert inspection.errors == []
    assert inspection.spec.aux_layers.layer_ids == tuple(layer + 1 for layer in shape.outputs)


def test_a_tensor_too_few_would_be_noticed(weightless):
    shape = LLAMA_8B["real"]
    tensors = shape.tensors()
    del tensors["fc.weight"]
    assert inspect(shape.target(), shape.draft(), tensors, "eagle3").errors
