"""The training script end to end, with a handful of steps: what it writes is the published format."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from tests.support.engine import ROOT, TINY
from vllm_eagle_ext.draft import TargetFacts, inspect_draft, read_draft_files
from vllm_eagle_ext.draft.spec import DraftRequest

EXPECTED = TargetFacts(num_layers=12, hidden_size=192, vocab_size=1536)
HYBRID = TargetFacts(num_layers=8, hidden_size=192, vocab_size=1600)
DRAFTS = ("native", "postnorm", "gated", "dflash")


def names_and_shapes(folder):
    return {name: tuple(t.shape) for name, t in load_file(folder / "model.safetensors").items()}


@pytest.mark.long
def test_script_writes_the_committed_formats(tmp_path):
    command = [sys.executable, "-m", "examples.tiny.train", "--out", str(tmp_path)]
    command += ["--target-steps=2", "--draft-steps=2", "--own-rows=8"]
    command += ["--hybrid-steps=2", "--dflash-steps=2"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report) == {"target", "text", "hybrid_target", "hybrid_text", *DRAFTS}
    for name in DRAFTS:
        assert names_and_shapes(tmp_path / name) == names_and_shapes(TINY / name)
    for name in ("hybrid_target", *DRAFTS):
        written, committed = (folder / name / "config.json" for folder in (tmp_path, TINY))
        assert written.read_text() == committed.read_text()


@pytest.mark.parametrize(
    ("name", "family", "layer_ids", "target", "method", "k"),
    [
        ("native", "native", (2, 6, 9), EXPECTED, "eagle3", 4),
        ("postnorm", "post-norm", (2, 4, 6, 8, 10), EXPECTED, "eagle3", 4),
        ("gated", "gated", (2, 4, 6, 8, 10), EXPECTED, "eagle3", 4),
        ("dflash", "dflash", (1, 3, 5, 7), HYBRID, "dflash", 7),
    ],
)
def test_committed_pairs_are_what_they_say(name, family, layer_ids, target, method, k):
    engine = DraftRequest(method=method, k=k, max_model_len=1024)
    inspection = inspect_draft(read_draft_files(str(TINY / name)), target, engine)
    assert inspection.errors == []
    assert (inspection.spec.family.name, inspection.spec.aux_layers.layer_ids) == (family, layer_ids)
    tensors = load_file(TINY / name / "model.safetensors")
    assert not any("embed_tokens" in tensor for tensor in tensors)
    if "d2t" in tensors:
        ids = tensors["d2t"] + tensors["d2t"].new_tensor(range(len(tensors["d2t"])))
        assert ids.unique().numel() == ids.numel()
        assert tensors["t2d"].nonzero()[:, 0].tolist() == ids.tolist()
