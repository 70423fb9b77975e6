"""`draft_vocabulary`: what `check` and a start refuse, and with which words."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from vllm.model_executor.layers.quantization import get_quantization_config

from tests.support.checkpoints import VOCAB, write_target
from tests.support.described import changed, problems, tiny_config
from tests.support.draft_vocabularies import whole, write_ids
from tests.support.drafting import resolve_draft
from tests.support.drafts import inspect, valid_draft, write
from tests.support.engine import has_gpu
from vllm_eagle_ext.errors import OptionsError
from vllm_eagle_ext.start.check import CheckRequest, run_check
from vllm_eagle_ext.start.rules.draft_vocabulary import (
    draft_options_are_followed,
    quantises_head,
    rows_can_be_kept,
)

pytestmark = pytest.mark.skipif(has_gpu(), reason="asks for what vLLM's CPU platform does")


def packed(target: str) -> dict:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    return {
        "format": "pack-quantized",
        "config_groups": {"a": {"targets": [target], "weights": weights}},
    }


GPTQ = {"bits": 4, "group_size": 128, "desc_act": False, "sym": True}
FP8 = {"quant_algo": "FP8", "exclude_modules": ["*lm_head*"]}
QUANTISATIONS = {  # vLLM's method, its keys, and whether a head is quantised
    "plain": (None, {}, False),
    "gptq, head": ("gptq", GPTQ | {"lm_head": True}, True),
    "gptq": ("gptq", GPTQ | {"lm_head": False}, False),
    "compressed-tensors, head": ("compressed-tensors", packed("re:.*lm_head"), True),
    "compressed-tensors": ("compressed-tensors", packed("Linear"), False),
    "modelopt": ("modelopt", {"quantization": FP8}, False),
    "fp8": ("fp8", {"quant_method": "fp8", "activation_scheme": "dynamic"}, False),
}
QUANTISED_HEAD = {
    "quant_config": get_quantization_config("gptq").from_config(QUANTISATIONS["gptq, head"][1])
}
M2N, IPC = ({"weight_transfer_config": SimpleNamespace(backend=by)} for by in ("nccl_m2n", "ipc"))
QUANTISED_COPY = "speculative_config__draft_lm_head_quantization"


def said(tmp_path, draft, ids=range(70), **fields):
    file = write_ids(tmp_path / "ids.json", ids)
    case = inspect(draft, tmp_path / "draft", draft_vocabulary=file).case
    config = changed(tiny_config(), **fields)
    return [str(problem) for problem in problems(rows_can_be_kept, config, case)]


@pytest.mark.parametrize(
    ("family", "engine", "words"),
    [
        ("dflash2", {}, "run in classes of vLLM's"),
        ("dspark", {}, "run in classes of vLLM's"),
        ("native", {}, "this one has 96 of 128 tokens"),
        ("dflash", QUANTISED_HEAD, "a target with a plain head"),
        ("dflash", {QUANTISED_COPY: "fp8"}, "a quantised head in its"),
        ("dflash", M2N, "after one by nccl_m2n the kept rows"),
    ],
)
def test_refused(tmp_path, family, engine, words):
    texts = said(tmp_path, valid_draft(family), **engine)
    assert len(texts) == 1
    assert words in texts[0]
    assert str(tmp_path / "ids.json") in texts[0]


@pytest.mark.parametrize("engine", [{}, IPC, {QUANTISED_COPY: None}])
@pytest.mark.parametrize("family", ["native", "gated", "speculators", "dflash", "mla"])
def test_served(tmp_path, family, engine):
    assert said(tmp_path, whole(family), **engine) == []


def test_a_head_of_its_own_does_not_follow_the_target(tmp_path):
    assert said(tmp_path, whole("mla"), **QUANTISED_HEAD, **M2N) == []


def test_a_quantised_head_of_its_own(tmp_path):
    file = write_ids(tmp_path / "ids.json", range(70))
    case = inspect(whole("mla"), tmp_path / "draft", draft_vocabulary=file).case
    header = replace(case.files.tensors["lm_head.weight"], dtype="F8_E4M3")
    files = replace(case.files, tensors={**case.files.tensors, "lm_head.weight": header})
    (problem,) = problems(rows_can_be_kept, tiny_config(), replace(case, files=files))
    assert "whose own head is plain" in problem.allowed


@pytest.mark.parametrize(
    ("ids", "ranks", "refused"),
    [
        (range(63), 1, True), (range(64), 1, False), (range(64), 2, True),
        (range(VOCAB), 1, True), (range(1, VOCAB), 1, False), (range(60, VOCAB + 1), 1, True),
    ],
)  # fmt: skip
def test_ids_are_a_part_of_the_targets(tmp_path, ids, ranks, refused):
    texts = said(tmp_path, whole("dflash"), ids, parallel_config__tensor_parallel_size=ranks)
    assert len(texts) == refused
    if refused:
        assert f"{64 * ranks} ids (64 on each rank) to 127, none above 127" in texts[0]


def test_ranks_share_the_rows(tmp_path):
    """vLLM pads them to a multiple of 64, and three ranks take as many each."""
    texts = said(tmp_path, whole("dflash"), range(128), parallel_config__tensor_parallel_size=3)
    assert "a multiple of 192, since 3 ranks share rows in steps of 64" in texts[0]


@pytest.mark.parametrize(
    ("family", "ids"), [("native", range(70)), ("dflash", range(10)), ("dflash", [1, 1])], ids=str
)
def test_a_start_refuses_them(tmp_path, family, ids):
    file = write_ids(tmp_path / "ids.json", ids)
    with pytest.raises(OptionsError, match="draft_vocabulary"):
        resolve_draft(tmp_path, valid_draft(family), draft_vocabulary=file)


def test_check_names_the_size(tmp_path):
    file = write_ids(tmp_path / "ids.json", range(70))
    draft = write(whole("dflash"), tmp_path / "draft")
    request = CheckRequest(
        draft=str(draft), target=str(write_target(tmp_path / "target")), platform="cpu",
        options={"draft_vocabulary": file},
    )  # fmt: skip
    spec = run_check(request).inspection.spec
    assert spec.head_bytes == 2 * 70 * spec.hidden_size


@pytest.mark.parametrize("option", [{"draft_vocabulary": "ids.json"}, {"draft_window": 64}], ids=str)
@pytest.mark.parametrize(("drafts", "is_ours"), [(True, True), (True, False), (False, False)])
def test_options_of_a_draft_that_does_not_follow_them(tmp_path, option, drafts, is_ours):
    """Without any draft nothing has a window."""
    config = tiny_config() if drafts else changed(tiny_config(), speculative_config=None)
    case = inspect(valid_draft("native"), tmp_path).case if is_ours else None
    fired = problems(draft_options_are_followed, config, case, **option)
    assert len(fired) == (not is_ours and (drafts or "draft_vocabulary" in option))
    assert not problems(draft_options_are_followed, config, case)


def test_a_draft_that_is_left_to_vllm(tmp_path):
    draft = valid_draft("native")
    draft.config["architectures"] = ["K3DSparkModel"]
    inspection = inspect(draft, tmp_path, draft_vocabulary="ids.json")
    assert [error.rule for error in inspection.errors] == ["draft_vocabulary_has_a_drafter"]
    assert not inspect(draft, tmp_path).errors


@pytest.mark.parametrize("kind", QUANTISATIONS)
def test_vllms_quantisation_is_asked_for_the_head(kind):
    method, keys, quantised = QUANTISATIONS[kind]
    quant = method and get_quantization_config(method).from_config(keys)
    assert quantises_head(changed(tiny_config(), quant_config=quant)) is quantised


def test_a_quantisation_that_cannot_be_asked_stops_no_start():
    assert not quantises_head(changed(tiny_config(), quant_config="none of vLLM's"))
