from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

from tests.support.checkpoints import (
    HIDDEN,
    LAYERS,
    VOCAB,
    draft_config,
    draft_tensors,
    tiny_draft,
    write_draft,
)
from vllm_eagle_ext.checkpoint import TargetFacts, read_draft_files, read_draft_spec
from vllm_eagle_ext.errors import UnsupportedDraftError

TARGET = TargetFacts(num_layers=LAYERS, hidden_size=HIDDEN, vocab_size=VOCAB)


def spec_of(folder, target=TARGET, **options):
    return read_draft_spec(read_draft_files(str(folder)), target, **options)


def test_post_norm_five_layers(tmp_path):
    spec = spec_of(tiny_draft(tmp_path, num_aux=5))
    assert spec.aux_layers.boundaries == (2, 3, 4, 5, 6)
    assert (spec.family, spec.fc_norm, spec.norm_output) == ("post-norm EAGLE-3", True, True)
    assert any("nested" in gap for gap in spec.stock_gaps)


def test_native_without_ids_is_served_rightly_by_vllm_too(tmp_path):
    spec = spec_of(tiny_draft(tmp_path, num_aux=3, post_norm=False, eagle_config=None))
    assert spec.aux_layers.boundaries == (2, 4, 5)
    assert (spec.family, spec.fc_norm, spec.norm_output) == ("EAGLE-3", False, False)
    assert spec.stock_gaps == ()


def test_flags_in_eagle_config_count(tmp_path):
    config = draft_config(num_aux=3, post_norm=False)
    config["eagle_config"] |= {"fc_norm": True, "norm_output": True}
    write_draft(tmp_path, config, draft_tensors(num_aux=3, post_norm=True))
    spec = spec_of(tmp_path)
    assert (spec.fc_norm, spec.norm_output) == (True, True)
    assert any("norm_output is read at top level" in gap for gap in spec.stock_gaps)


def test_contradicting_flags(tmp_path):
    config = draft_config(num_aux=3, post_norm=True)
    config["eagle_config"]["norm_output"] = False
    write_draft(tmp_path, config, draft_tensors(num_aux=3, post_norm=True))
    with pytest.raises(UnsupportedDraftError, match="norm_output at top level and in eagle_config"):
        spec_of(tmp_path)


def test_norm_output_option_wins(tmp_path):
    spec = spec_of(tiny_draft(tmp_path), norm_output=False)
    assert (spec.norm_output, spec.norm_output_source) == (False, "option norm_output")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"hidden_size": 128}, "64, the target's hidden size", id="hidden_size"),
        pytest.param({"hidden_size": None}, "a positive integer", id="no_hidden_size"),
        pytest.param({"target_hidden_size": 32}, "target_hidden_size", id="target_hidden_size"),
        pytest.param({"fc_norm": False}, "does not set fc_norm", id="norms_without_flag"),
        pytest.param({"norm_before_fc": True}, "one of the two", id="both_input_norms"),
        pytest.param({"num_hidden_layers": "x"}, "num_hidden_layers", id="layers_no_integer"),
        pytest.param({"draft_vocab_size": "big"}, "draft_vocab_size", id="vocabulary_no_integer"),
        pytest.param({"eagle_config": None}, r"shape of fc.weight is \(64, 320\)", id="five_no_ids"),
        pytest.param(
            {"hidden_size": 32, "target_hidden_size": 64}, "embed_tokens", id="embeddings_unshared"
        ),
    ],
)
def test_config_that_does_not_fit_is_refused(tmp_path, change, words):
    folder = tiny_draft(tmp_path, num_aux=5, **change)
    with pytest.raises(UnsupportedDraftError, match=words):
        spec_of(folder)


@pytest.mark.parametrize(
    "name",
    sorted(set(draft_tensors(num_aux=3, post_norm=True)) - {"t2d"}),
)
def test_a_missing_tensor_is_named(tmp_path, name):
    tensors = draft_tensors(num_aux=3, post_norm=True)
    del tensors[name]
    folder = write_draft(tmp_path, draft_config(num_aux=3, post_norm=True), tensors)
    module = name.removesuffix(".weight").replace("midlayer.", "layers.0.")
    named = "fc_norm" if name.startswith("fc_norm") else rf"without {re.escape(module)}"
    with pytest.raises(UnsupportedDraftError, match=named):
        spec_of(folder)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        pytest.param(
            "midlayer.self_attn.q_proj.weight", lambda t: torch.cat([t, t]), "gated", id="gated"
        ),
        pytest.param(
            "midlayer.self_attn.k_proj.weight",
            lambda t: torch.cat([t, t]),
            "k_proj.weight is 64",
            id="tall_k",
        ),
        pytest.param("midlayer.self_attn.o_proj.weight", lambda t: t[:32], "o_proj", id="short_o"),
        pytest.param("d2t", lambda t: t + torch.arange(len(t)), "target ids from 0", id="absolute_d2t"),
        pytest.param("d2t", lambda t: -torch.arange(len(t)), "a different target id", id="d2t_repeats"),
        pytest.param("d2t", lambda t: t - t[0] - 1, "target ids from 0", id="d2t_negative"),
        pytest.param("d2t", lambda t: t[:-1], "96 offsets", id="d2t_short"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(tmp_path, name, change, words):
    tensors = draft_tensors(num_aux=3, post_norm=True)
    tensors[name] = change(tensors[name]).contiguous()
    folder = write_draft(tmp_path, draft_config(num_aux=3, post_norm=True), tensors)
    with pytest.raises(UnsupportedDraftError, match=words):
        spec_of(folder)


@pytest.mark.parametrize("flag", [True, False])
def test_input_norm_and_its_flag_go_together(tmp_path, flag):
    config = draft_config(num_aux=3, post_norm=False, norm_before_fc=flag)
    tensors = draft_tensors(num_aux=3, post_norm=False)
    norm = {"input_norm.weight": torch.ones(3 * HIDDEN, dtype=torch.bfloat16)}
    assert spec_of(write_draft(tmp_path / "right", config, tensors | (norm if flag else {})))
    wrong = write_draft(tmp_path / "wrong", config, tensors | ({} if flag else norm))
    with pytest.raises(UnsupportedDraftError, match="norm_before_fc"):
        spec_of(wrong)


def test_eagle_config_that_is_no_object(tmp_path):
    with pytest.raises(UnsupportedDraftError, match="eagle_config"):
        spec_of(tiny_draft(tmp_path, eagle_config=[1]))


def test_scales_alone_are_no_weights(tmp_path):
    tensors = draft_tensors(num_aux=3, post_norm=True)
    tensors["midlayer.self_attn.k_proj.k_scale"] = tensors.pop("midlayer.self_attn.k_proj.weight")[0]
    folder = write_draft(tmp_path, draft_config(num_aux=3, post_norm=True), tensors)
    with pytest.raises(UnsupportedDraftError, match="without layers.0.self_attn.k_proj"):
        spec_of(folder)


def test_quantised_modules_count_as_present(tmp_path):
    tensors = draft_tensors(num_aux=3, post_norm=True)
    packed = {
        name.replace(".weight", ".weight_packed") if "proj" in name else name: tensor
        for name, tensor in tensors.items()
    }
    folder = write_draft(tmp_path, draft_config(num_aux=3, post_norm=True), packed)
    assert spec_of(folder).fc_norm


def test_reads_without_vllm_or_torch(tmp_path):
    folder = tiny_draft(tmp_path)
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['vllm'] = None\n"
        "from vllm_eagle_ext.checkpoint import *\n"
        f"print(read_draft_spec(read_draft_files({str(folder)!r}), TargetFacts(8, 64, 128)).family)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "post-norm EAGLE-3", result.stderr
