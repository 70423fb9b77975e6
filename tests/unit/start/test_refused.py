"""What is refused before vLLM has a say, and in which words."""

from __future__ import annotations

import logging
import types

import pytest
import torch

from tests.support.checkpoints import tiny_draft, write_target
from tests.support.drafts import valid_draft, write
from tests.unit.start.configs import DRAFTER, speculative_config
from vllm_eagle_ext.errors import (
    EagleExtError,
    OptionsError,
    SpeculativeConfigError,
    UnsupportedDraftError,
)


class TestRefused:
    def test_unknown_option_even_without_a_draft(self, target):
        with pytest.raises(OptionsError, match="aux_layer is 'auto'"):
            speculative_config(target, "", method=None, model=None, options={"aux_layer": "auto"})

    @pytest.mark.parametrize(
        "asked",
        [{"num_speculative_tokens": 0}, {"num_speculative_tokens": -1}, {"model": None}],
        ids=str,
    )
    def test_what_vllm_refuses_in_its_words(self, target, tmp_path, asked):
        with pytest.raises(ValueError, match=r"greater than 0|without speculative model") as caught:
            speculative_config(target, tiny_draft(tmp_path), **asked)
        assert not isinstance(caught.value, EagleExtError)


class TestAsked:
    def test_options_beside_their_key(self, target, tmp_path, vllm_log):
        arguments = {"additional_config": {"aux_layers": "input"}}
        speculative_config(target, tiny_draft(tmp_path), arguments=arguments)
        (record,) = vllm_log.containing("aux_layers")
        assert record.levelname == "WARNING"
        assert '"eagle_ext"' in record.getMessage()

    @pytest.mark.parametrize("k", [511, 2000])
    def test_k_that_no_context_holds(self, target, tmp_path, k):
        with pytest.raises(SpeculativeConfigError, match=rf"num_speculative_tokens is {k}\..*512"):
            speculative_config(target, tiny_draft(tmp_path), num_speculative_tokens=k)

    def test_a_folder_of_a_repository(self, target):
        with pytest.raises(UnsupportedDraftError) as caught:
            speculative_config(target, "owner/model/draft/eagle")
        assert "vLLM looks into no folder of a repository" in caught.value.allowed
        assert caught.value.remedy == (
            "no such folder here; if it is a folder in a repository of the hub: "
            "hf download owner/model --include 'draft/eagle/*' --local-dir model, and name the folder "
            "model/draft/eagle"
        )

    def test_a_revision_behind_the_name(self, target):
        with pytest.raises(UnsupportedDraftError, match="a revision is named apart"):
            speculative_config(target, "owner/model@v1")


class TestAnotherTarget:
    def test_the_cause_is_told_once_and_first(self, tmp_path):
        target = write_target(tmp_path / "other", hidden_size=128, vocab_size=256)
        with pytest.raises(UnsupportedDraftError) as caught:
            speculative_config(target, tiny_draft(tmp_path / "draft"))
        message = str(caught.value)
        assert "is 'probably another one'" in message.splitlines()[0]
        assert "hidden size 64 (here 128), a vocabulary of 128 (here 256)" in message.splitlines()[0]
        assert "further errors follow from it: `vllm-eagle check --all` shows" in message
        assert len(message.splitlines()) == 3

    def test_what_follows_from_a_wrong_width_is_counted(self, target, tmp_path):
        draft = tiny_draft(tmp_path, hidden_size=96)
        with pytest.raises(UnsupportedDraftError) as caught:
            speculative_config(target, draft)
        message = str(caught.value)
        assert 'its weights have another width: edit config.json: "hidden_size": 64' in message
        assert "name as many layers as fc reads" not in message
        assert len(message.splitlines()) == 3


class TestMethod:
    """vLLM takes it from words in the path, and falls back to draft_model."""

    @pytest.mark.parametrize("method", [None, "draft_model", "eagle"])
    def test_a_draft_that_would_run_as_something_else(self, target, tmp_path, method):
        draft = tiny_draft(tmp_path / "head")
        with pytest.raises(SpeculativeConfigError, match='write "method": "eagle3"'):
            speculative_config(target, draft, method=method)

    def test_a_block_draft_without_one(self, target, tmp_path):
        path = write(valid_draft("dflash"), tmp_path / "block")
        with pytest.raises(SpeculativeConfigError, match='write "method": "dflash"'):
            speculative_config(target, path, method=None, num_speculative_tokens=7)

    def test_a_plain_draft_model_is_left_alone(self, tmp_path):
        target = write_target(tmp_path / "target")
        config = speculative_config(target, write_target(tmp_path / "small"), method="draft_model")
        assert not hasattr(config.draft_model_config.hf_config, "eagle_ext")


class TestErrorsComeBeforeVllms:
    """Each of these is something that vLLM answers with an error of its own, or not at all."""

    def test_every_error_is_listed_and_the_way_out_named(self, target, tmp_path):
        draft = valid_draft("native")
        draft.tensors["midlayer.self_attn.q_proj.bias"] = torch.ones(64)
        draft.config["eagle_config"]["norm_output"] = True
        draft.config["norm_output"] = False
        with pytest.raises(UnsupportedDraftError) as caught:
            speculative_config(target, write(draft, tmp_path))
        for word in ("q_proj.bias", "norm_output at", "\n  also: ", '"strict": false'):
            assert word in str(caught.value)

    def test_strict_off_serves_with_warnings(self, target, tmp_path, vllm_log):
        draft = valid_draft("native")
        draft.tensors["midlayer.self_attn.q_proj.bias"] = torch.ones(64)
        speculative_config(target, write(draft, tmp_path), options={"strict": False})
        (record,) = vllm_log.containing("q_proj.bias")
        assert record.levelno == logging.WARNING


def test_method_that_vllm_takes_from_the_path(target, tmp_path):
    config = speculative_config(target, tiny_draft(tmp_path / "my_eagle3_head", num_aux=5), method=None)
    assert config.method == "eagle3"
    assert config.draft_model_config.architecture == DRAFTER


def test_drafter_refuses_a_config_from_another_version():
    from vllm_eagle_ext.families.resolved_marker import require_marker, write_marker

    hf_config = types.SimpleNamespace()
    with pytest.raises(UnsupportedDraftError, match="version of vllm-eagle-ext"):
        require_marker(hf_config)
    write_marker(hf_config)
    require_marker(hf_config)
    hf_config.eagle_ext["version"] = "0.0.0"
    with pytest.raises(UnsupportedDraftError, match=r"'0\.0\.0'"):
        require_marker(hf_config)
