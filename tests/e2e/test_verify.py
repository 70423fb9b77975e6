"""`vllm-eagle verify` on tiny pairs: drafts served as published pass, one served otherwise does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.checkpoints import write_draft
from tests.support.dense import FLOAT32, dense
from tests.support.engine import IN_PROCESS, ROOT, TINY, engine_environment
from tests.support.hybrid import with_log
from vllm_eagle_ext.start.check import CheckRequest, run_check

pytestmark = [pytest.mark.e2e, pytest.mark.full]

ENGINE = {"max_model_len": 1024, "enforce_eager": True, "gpu_memory_utilization": 0.3}
HYBRID = ENGINE | {"dtype": "bfloat16"}


def verify(
    draft: str | Path, target: str, *arguments: str, engine: dict[str, Any] = ENGINE, **environment: str
):
    """Exit status, and what was printed as JSON."""
    command = [str(Path(sys.executable).parent / "vllm-eagle"), "verify", str(TINY / draft)]
    command += ["--target", str(TINY / target), "--prompts", str(TINY / "prompts.jsonl"), "--json"]
    command += ["--engine", json.dumps(engine), *arguments]
    result = subprocess.run(
        command, cwd=ROOT, env=engine_environment("v1") | environment, capture_output=True, text=True,
        timeout=900, check=False,
    )  # fmt: skip
    assert result.returncode in (0, 1), result.stdout + result.stderr
    doc = json.loads(result.stdout)
    for check in doc.get("checks", ()):
        print(f"\n{check['name']}: {check['verdict']}. {check['said']}", *check["details"], sep="\n  ")
    return result.returncode, doc


def by_name(doc) -> dict[str, Any]:
    return {check["name"]: check for check in doc["checks"]}


def verdicts(doc) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in doc["checks"]}


def test_the_postnorm_pair_passes():
    few = ["-k", "4", "--num-prompts", "10", "--max-tokens", "48", "--samples", "600"]
    code, doc = verify("postnorm", "target", *few, **IN_PROCESS)
    assert verdicts(doc) == {
        "preflight": "passed",
        "greedy texts": "passed",
        "sampled texts": "passed",
        "reference": "passed",
        "hybrid states": "not applicable",
        "acceptance": "passed",
    }
    assert code == 0
    checks = by_name(doc)
    assert checks["reference"]["figures"]["drafts"] > 100
    assert checks["sampled texts"]["figures"]["accepted"] > 100
    assert checks["sampled texts"]["figures"]["drafted"]["cells"] > 10


def in_speculators_format(folder: Path, kind: str, **root: Any) -> Path:
    """The native draft as speculators writes it by default: a window of 2048, and ids of any order.

    Args:
        root: keys of config.json beside the layers' block.
    """
    layer = json.loads((TINY / "native/config.json").read_text())
    tensors = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in load_file(TINY / "native/model.safetensors").items()
    }
    del layer["architectures"]
    windowed = {"sliding_window": 2048, "layer_types": ["sliding_attention"], "use_sliding_window": True}
    flags = dict.fromkeys(("norm_before_residual", "norm_before_fc", "norm_output", "fc_norm"), False)
    config = {
        "speculators_model_type": kind,
        "eagle_aux_hidden_state_layer_ids": [9, 2, 6],
        "draft_vocab_size": layer.pop("draft_vocab_size"),
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        },
        "transformer_layer_config": layer | windowed,
        **flags,
        **root,
    }
    write_draft(folder, config, tensors)
    asked = CheckRequest(draft=str(folder), target=str(TINY / "target"), options={"strict": False})
    order = run_check(asked).inspection.spec.aux_layers.order
    blocks = tensors["fc.weight"].chunk(3, dim=1)
    tensors["fc.weight"] = torch.cat([blocks[order.index(at)] for at in range(3)], dim=1)
    if kind == "peagle":
        mask = torch.randn(1, 3 * layer["hidden_size"], generator=torch.Generator().manual_seed(1))
        tensors["mask_hidden"] = mask.bfloat16()
    return write_draft(folder, config, tensors)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "root"),
    [
        ("eagle3", {"architectures": ["Eagle3DraftModel"]}),
        ("peagle", {"architectures": ["PEagleDraftModel"], "mask_token_id": 1535}),
    ],
)
def test_drafts_in_the_speculators_format_pass(tmp_path, kind, root):
    """The P-EAGLE draft has never seen a mask: its first tokens are those of the native one."""
    draft = in_speculators_format(tmp_path / kind, kind, **root)
    code, doc = verify(draft, "target", "--quick", "--max-tokens", "64", **IN_PROCESS)
    assert code == 0
    checks = by_name(doc)
    assert checks["reference"]["verdict"] == checks["greedy texts"]["verdict"] == "passed"
    assert checks["reference"]["figures"]["drafts"] > 100
    assert checks["reference"]["figures"]["reference"][0] > 0.4


def test_a_draft_that_names_target_and_k_is_served_by_its_own_name(tmp_path, prompts):
    """As by `vllm serve DRAFT`: vLLM reads the target and K from the draft's config.json."""
    draft = in_speculators_format(tmp_path / "draft", "eagle3", architectures=["Eagle3DraftModel"])
    config = json.loads((draft / "config.json").read_text())
    config["speculators_config"]["verifier"] = {
        "name_or_path": str(TINY / "target"), "architectures": ["LlamaForCausalLM"],
    }  # fmt: skip
    (draft / "config.json").write_text(json.dumps(config))
    asked = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": 3}
    common = {"prompts": prompts[:6], "engine_args": FLOAT32}
    results, log = with_log(
        [dense("by itself", target=draft, **common), dense("named", speculative=asked, **common)]
    )
    assert log.count("Drafting is on: 3 tokens per step") == 2
    assert results["by itself"]["tokens"] == results["named"]["tokens"]
    counted = results["by itself"]["counters"]
    assert counted == results["named"]["counters"]
    assert counted["spec_decode_num_accepted_tokens"] > counted["spec_decode_num_drafts"]


@pytest.mark.long
def test_the_feedback_of_the_postnorm_pair_wins():
    code, doc = verify("postnorm", "target", "--feedback", "--concurrency", "20", "-k", "3")
    assert code == 0
    assert (doc["option"], doc["winner"]) == ("norm_output", True)
    right, wrong = doc["measured"]
    assert right["rates"][0] == pytest.approx(wrong["rates"][0], abs=0.05)
    assert right["share"] > wrong["share"] + 4 * (right["error"] ** 2 + wrong["error"] ** 2) ** 0.5


@pytest.mark.long
def test_the_hybrid_pair_passes():
    """With its own K, that of its blocks; replay is chosen, and the other scheme runs beside it."""
    code, doc = verify("dflash", "hybrid_target", engine=HYBRID)
    assert (code, doc["k"]) == (0, 7)
    assert set(verdicts(doc).values()) == {"passed"}
    states = by_name(doc)["hybrid states"]["figures"]
    assert states["served"] == "replay"
    assert states["counters"]["replay"] == states["counters"]["per_token"]


@pytest.mark.long
def test_a_draft_that_is_fed_back_the_wrong_state_fails():
    """Lossless, and drafting worse than it could from the second token on."""
    options = json.dumps({"norm_output": False})
    code, doc = verify("postnorm", "target", "-k", "4", "--eagle-ext", options)
    assert code == 1
    assert verdicts(doc)["reference"] == "FAILED"
    assert verdicts(doc)["greedy texts"] == verdicts(doc)["sampled texts"] == "passed"
    figures = by_name(doc)["reference"]["figures"]
    assert figures["engine"][0] == pytest.approx(figures["reference"][0], abs=0.03)
    assert figures["engine"][1] < figures["reference"][1] - 0.1


@pytest.mark.long
def test_a_draft_that_reads_other_layers_is_seen():
    """Neighbouring layers of this target are so alike that as many drafts are accepted, but others."""
    options = json.dumps({"aux_layers": [1, 3, 5, 7, 9]})
    more = ["--num-prompts", "40"]
    _, doc = verify("postnorm", "target", "-k", "4", "--eagle-ext", options, *more)
    assert verdicts(doc)["reference"] in ("warning", "FAILED")


@pytest.mark.long
def test_the_layout_of_the_gated_pair_wins():
    code, verdict = verify(
        "gated",
        "target",
        "--gate-layouts",
        "--num-prompts",
        "120",
        "--concurrency",
        "20",
        "--max-tokens",
        "16",
    )
    assert code == 0
    assert verdict["winner"] == "interleaved"
    right, wrong = verdict["measured"]
    assert right["rates"][0] > 0.6 > 0.4 > wrong["rates"][0]
