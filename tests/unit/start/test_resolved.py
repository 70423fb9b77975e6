"""EAGLE-3 drafts: what reaches the runners, what the log says, and what is left alone."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from tests.support.checkpoints import tiny_draft
from tests.support.drafting import skipping_without_a_kernel
from tests.support.drafts import OURS, valid_draft, write
from tests.unit.start.configs import DRAFTER, speculative_config
from vllm_eagle_ext import __version__
from vllm_eagle_ext.draft.spec import DraftRequest
from vllm_eagle_ext.start.build import inspect_start


def test_aux_layers_and_flags_where_both_runners_read_them(target, tmp_path):
    from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    config = speculative_config(target, tiny_draft(tmp_path, num_aux=5))
    hf_config = config.draft_model_config.hf_config
    assert hf_config.eagle_aux_hidden_state_layer_ids == [2, 3, 4, 5, 6]
    assert hf_config.eagle_config["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4, 5, 6]
    assert hf_config.num_aux_hidden_states == 5
    assert (hf_config.fc_norm, hf_config.norm_output) == (True, True)
    assert hf_config.eagle_ext["version"] == __version__
    assert config.draft_model_config.architecture == DRAFTER
    v1_runner = object.__new__(GPUModelRunner)
    v1_runner.speculative_config = config
    assert v1_runner._get_eagle3_aux_layers_from_config() == (2, 3, 4, 5, 6)
    assert get_eagle3_aux_layers_from_config(config) == (2, 3, 4, 5, 6)


def test_native_draft_gets_no_norm(target, tmp_path):
    draft = tiny_draft(tmp_path, num_aux=3, post_norm=False, eagle_config=None)
    hf_config = speculative_config(target, draft).draft_model_config.hf_config
    assert (hf_config.fc_norm, hf_config.norm_output) == (False, False)
    assert hf_config.eagle_aux_hidden_state_layer_ids == [2, 4, 5]


def test_spec_flags_of_the_command_line(target, tmp_path):
    draft = str(tiny_draft(tmp_path, num_aux=5))
    flags = {"spec_method": "eagle3", "spec_model": draft, "spec_tokens": 3}
    unnamed = {"method": None, "model": None, "num_speculative_tokens": None}
    config = speculative_config(target, "", arguments=flags, **unnamed)
    assert config.draft_model_config.architecture == DRAFTER
    assert config.num_speculative_tokens == 3


def test_one_line_says_aux_layers_rule_and_drafter(target, tmp_path, vllm_log):
    draft = tiny_draft(tmp_path, num_aux=5)
    speculative_config(target, draft)
    speculative_config(target, draft)
    (record,) = vllm_log.containing("the inputs of target layers")
    assert record.levelno == logging.INFO
    for word in (
        str(draft),
        "[2, 3, 4, 5, 6] of 8",
        "the input of layer id + 1",
        DRAFTER,
        "fc_norm, norm_output",
    ):
        assert word in record.getMessage()


def test_default_aux_layers_are_a_warning(target, tmp_path, vllm_log):
    speculative_config(target, tiny_draft(tmp_path, num_aux=3, post_norm=False, eagle_config=None))
    (record,) = vllm_log.containing("eagle_aux_hidden_state_layer_ids")
    assert record.levelno == logging.WARNING
    assert "[2, 4, 5] is taken" in record.getMessage()


class TestUntouched:
    def test_no_draft(self, target):
        assert (
            speculative_config(target, "", method=None, model=None, num_speculative_tokens=None) is None
        )

    def test_other_method(self, target):
        config = speculative_config(target, "", method="ngram", model=None)
        assert config.method == "ngram"
        assert not hasattr(config.draft_model_config.hf_config, "eagle_ext")


def test_null_target_hidden_size_means_the_targets(target, tmp_path):
    draft = tiny_draft(tmp_path, num_aux=5, target_hidden_size=None)
    assert speculative_config(target, draft).draft_model_config.hf_config.target_hidden_size == 64


ELSEWHERE = SimpleNamespace(
    hf_token=None,
    download_dir=None,
    speculative_config={"method": "eagle3", "model": "s3://bucket/draft"},
)


def test_other_storage_is_passed_through_to_vllm_with_a_warning(vllm_log):
    assert inspect_start(ELSEWHERE, None, DraftRequest(method="eagle3")) is None
    assert vllm_log.containing("not checked")


def test_peagle_keeps_the_norms_that_vllms_converter_drops(target, tmp_path):
    draft = valid_draft("p-eagle")
    draft.config |= {"fc_norm": True, "norm_output": True}
    draft.tensors |= {f"fc_norm.{k}.weight": torch.ones(64).bfloat16() for k in range(3)}
    config = speculative_config(target, write(draft, tmp_path), parallel_drafting=True)
    hf_config = config.draft_model_config.hf_config
    assert (hf_config.fc_norm, hf_config.norm_output) == (True, True)
    assert hf_config.pard_token == draft.config["mask_token_id"]


def test_speculators_without_norm_before_residual_get_their_own_default(target, tmp_path, vllm_log):
    draft = valid_draft("speculators")
    del draft.config["norm_before_residual"]
    config = speculative_config(target, write(draft, tmp_path))
    assert config.draft_model_config.hf_config.norm_before_residual is False
    assert vllm_log.containing("norm_before_residual")


@pytest.mark.parametrize("family", OURS)
def test_the_resolved_config_travels(target, tmp_path, family):
    """It goes to workers as a pickle, into hashes and logs as JSON."""
    import pickle

    draft = valid_draft(family)
    keys = {"parallel_drafting": True} if family == "p-eagle" else {}
    path = write(draft, tmp_path)
    with skipping_without_a_kernel():
        config = speculative_config(
            target, path, method=draft.method, num_speculative_tokens=draft.k, **keys
        )
    hf_config = config.draft_model_config.hf_config
    copied = pickle.loads(pickle.dumps(hf_config))
    assert copied.eagle_ext == hf_config.eagle_ext
    assert hf_config.eagle_ext["version"] in hf_config.to_json_string()
