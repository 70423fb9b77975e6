"""The check against the reference, on texts of the target's own and steps that a reference made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.checkpoints import write_draft
from tests.support.engine import TINY
from tests.unit.measure.verify.toy import stage
from vllm_eagle_ext.measure.engine.load import Answer, Measured
from vllm_eagle_ext.measure.prompts import PromptSet
from vllm_eagle_ext.measure.reference.published import (
    accepted_length,
    load_reference,
    load_target,
    residual_stream,
)
from vllm_eagle_ext.measure.verify import acceptance
from vllm_eagle_ext.measure.verify.request import VerifyRequest
from vllm_eagle_ext.start.check import CheckRequest, run_check

K, TOKENS = 3, 64
PROMPTS = [[5, 90 + number, 17, 300, 41] for number in range(4)]


def request(draft: str | Path = "postnorm", **options) -> VerifyRequest:
    check = CheckRequest(
        draft=str(TINY / draft), target=str(TINY / "target"), k=K, options=options
    )  # fmt: skip
    return VerifyRequest(check=check, engine={}, prompts=PromptSet("made up", PROMPTS, False, None))


def check(asked: VerifyRequest, measured: Measured):
    return acceptance.check_reference(asked, run_check(asked.check), measured, stage)


def serve(asked: VerifyRequest) -> Measured:
    """Greedy texts in the steps that this draft, read as asked, would have made of them."""
    target, spec = load_target(TINY / "target"), run_check(asked.check).inspection.spec
    reference = load_reference(spec, Path(asked.check.draft), target)
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        made = target.generate(ids, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
        tokens = made[0].tolist()
        rows = reference.true_rows(tokens, residual_stream(target, tokens, spec.aux_layers.layer_ids))
        steps = [1]
        while sum(steps) + K < TOKENS:
            start = len(prompt) - 2 + sum(steps)
            wanted = tokens[start + 2 : start + 2 + K]
            steps.append(1 + accepted_length(reference.draft(start, K, rows).tokens, wanted))
        counted = [steps[1:].count(1 + accepted) for accepted in range(K + 1)]
        answers.append(Answer(len(prompt), tokens[len(prompt) :], steps, 1.0, histogram=counted))
    return Measured(1.0, answers)


@pytest.fixture(scope="module")
def rightly():
    with torch.inference_mode():
        return serve(request())


def test_the_same_draft_passes(rightly):
    judged = check(request(), rightly)
    assert judged.verdict.value == "passed"
    assert judged.figures["engine"] == judged.figures["reference"]
    assert judged.figures["drafts"] > 60


def listed_otherwise(folder: Path, place: str, key: str) -> VerifyRequest:
    """The native draft with ids in another order, and the blocks of fc that these ids have then."""
    config = json.loads((TINY / "native/config.json").read_text())
    tensors = load_file(TINY / "native/model.safetensors")
    (config.setdefault(place, {}) if place else config)[key] = [8, 1, 5]
    asked = request(write_draft(folder, config, tensors))
    layers = run_check(asked.check).inspection.spec.aux_layers
    assert layers.layer_ids == (2, 6, 9)
    blocks = tensors["fc.weight"].chunk(3, dim=1)
    tensors["fc.weight"] = torch.cat([blocks[layers.order.index(at)] for at in range(3)], dim=1)
    write_draft(folder, config, tensors)
    return asked


@pytest.mark.parametrize(
    ("place", "key"),
    [("eagle_config", "eagle_aux_hidden_state_layer_ids"), ("", "aux_hidden_states_layer_ids")],
)
def test_ids_listed_otherwise_pass(tmp_path, place, key):
    """Served rightly, in the steps of the native draft."""
    asked = listed_otherwise(tmp_path / "draft", place, key)
    with torch.inference_mode():
        served = serve(request("native"))
    judged = check(asked, served)
    assert judged.verdict.value == "passed"
    assert judged.figures["engine"] == judged.figures["reference"]


def test_what_is_not_computed_is_not_applicable(tmp_path, rightly):
    config = json.loads((TINY / "postnorm/config.json").read_text())
    tensors = load_file(TINY / "postnorm/model.safetensors")
    write_draft(tmp_path, config | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, tensors)
    judged = check(request(tmp_path), rightly)
    assert (judged.verdict.value, judged.said) == (
        "not applicable", "the reference has no rope of the kind 'dynamic'",
    )  # fmt: skip


def test_another_feedback_fails():
    asked = request(norm_output=False)
    with torch.inference_mode():
        served = serve(asked)
    judged = check(asked, served)
    assert judged.verdict.value == "FAILED"
    assert "without norm_output" in " ".join(judged.details)


def test_steps_that_are_off_by_one_token_fail(rightly):
    answers = [replace(a, tokens=[7, *a.tokens[:-1]]) for a in rightly.answers]
    assert check(request(), replace(rightly, answers=answers)).verdict.value == "FAILED"


def test_left_out(rightly):
    judged = check(replace(request(), reference=False), rightly)
    assert (judged.verdict.value, judged.said) == ("not applicable", "left out by --no-reference")


def test_large_targets_are_asked_for(rightly, monkeypatch):
    monkeypatch.setattr(acceptance, "LARGEST_GIB", 0)
    judged = check(request(), rightly)
    assert judged.verdict.value == "not applicable"
    assert "--reference" in judged.said
    assert check(replace(request(), reference=True), rightly).verdict.value == "passed"


@pytest.mark.parametrize("name", ["_local", "_compare"])
def test_what_goes_wrong_is_no_end(rightly, monkeypatch, name):
    """What the engines found is not lost with it."""

    def fail(*_):
        raise ZeroDivisionError("of the reference")

    monkeypatch.setattr(acceptance, name, fail)
    result = check(request(), rightly)
    assert result.verdict.value == "not applicable"
    assert "cannot be computed (ZeroDivisionError: of the reference)" in result.said


@pytest.mark.parametrize(
    ("engine", "named"),
    [
        ({"quantization": "fp8", "seed": 1}, "quantization"),
        ({"hf_overrides": {"rope_theta": 5}}, "hf_overrides"),
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"trust_remote_code": False, "load_format": "auto", "hf_overrides": {}, "seed": 1}, None),
        ({"hf_overrides": {"image_token_index": 7}}, None),
        ({"hf_overrides": {"image_token_index": 7, "rope_theta": 5}}, "hf_overrides"),
    ],
)
def test_another_target_than_the_references(engine, named):
    reason = acceptance._unsupported_reason(
        replace(request(), engine=engine), run_check(request().check).inspection.spec
    )
    assert reason is None if named is None else f"without {named} of --engine" in reason


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ({"model.safetensors": 5, "pytorch_model.bin": 7}, 5),
        ({"model-1.safetensors": 5, "model-2.safetensors": 6, "consolidated.safetensors": 11}, 11),
        ({"pytorch_model.bin": 7, "config.json": 1}, 7),
    ],
)
def test_bytes_of_the_target(files, size):
    assert acceptance.weight_file_bytes(files) == size


def test_steps_without_drafts(rightly):
    halved = [replace(a, histogram=[]) if n % 2 else a for n, a in enumerate(rightly.answers)]
    judged = check(request(), replace(rightly, answers=halved))
    assert judged.verdict.value == "not applicable"
