"""What a start writes into the configs of DFlash2 and DSpark drafts, which vLLM's own classes read."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import write_target
from tests.support.described import changed, problems, tiny_config
from tests.support.drafts import BLOCK, MASK_TOKEN, inspect, valid_draft, write
from tests.unit.start.configs import before_the_engine
from vllm_eagle_ext.errors import UnsupportedDraftError
from vllm_eagle_ext.start.rules.weights import later_weights_stay_the_drafts


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")

    def make(draft, **keys):
        target, path = write_target(tmp_path / "target"), write(draft, tmp_path / "draft")
        given = {"method": draft.method, "num_speculative_tokens": draft.k} | keys
        return before_the_engine(target, path, **given)

    return make


def test_sizes_of_dspark_are_written_where_vllm_reads_them(start):
    config = start(valid_draft("dspark")).draft_model_config.hf_config
    assert config.architectures == ["Qwen3DSparkModel"]
    assert (config.markov_rank, config.markov_head_type) == (8, "vanilla")
    assert config.enable_confidence_head
    assert config.confidence_head_with_markov
    assert config.eagle_aux_hidden_state_layer_ids == [2, 4, 6]
    assert (config.block_size, config.mask_token_id) == (BLOCK, MASK_TOKEN)
    assert not hasattr(config, "eagle_ext")  # of this package's classes


@pytest.mark.parametrize(("family", "sampled"), [("dspark", True), ("dspark-speculators", False)])
def test_the_first_position_is_drafted_as_trained(start, family, sampled):
    assert start(valid_draft(family)).draft_model_config.hf_config.sample_from_anchor is sampled


def test_an_anchor_that_is_nested(start):
    draft = valid_draft("dspark")
    draft.config["dflash_config"]["sample_from_anchor"] = True
    config = start(draft).draft_model_config.hf_config
    assert config.sample_from_anchor is True
    assert "sample_from_anchor" not in config.dflash_config


def test_windows_that_are_not_causal(start):
    """vLLM makes windows of a DSpark draft causal, whatever speculators says."""
    draft = valid_draft("dspark-speculators")
    draft.config["sliding_window_non_causal"] = True
    layer = draft.config["transformer_layer_config"]
    layer |= {"layer_types": ["sliding_attention"] * 2, "sliding_window": 64}
    config = start(draft).draft_model_config.hf_config
    assert config.dflash_config["causal"] is False


def test_sizes_of_dflash2_are_written_where_vllm_reads_them(start):
    draft = valid_draft("dflash2")
    nested = draft.config["dflash_config"]
    moved = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    expected = {name: nested.pop(name) for name in moved}
    draft.config |= expected | {"output_multiplier": 2.0, "input_embedding_scale": 3.0}
    config = start(draft).draft_model_config.hf_config
    expected |= {"output_multiplier": 2.0, "input_embedding_scale": 3.0}
    assert {name: config.dflash_config[name] for name in expected} == expected


@pytest.mark.parametrize("family", ["dflash2", "dspark"])
def test_v1_is_refused_before_vllm_fails(start, monkeypatch, family):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    with pytest.raises(UnsupportedDraftError, match="v2 for this draft"):
        start(valid_draft(family))


def test_weights_that_come_later_would_take_the_targets_place(start, tmp_path):
    def judged(family, load_format):
        draft = valid_draft(family)
        speculative = start(draft, draft_load_config={"load_format": load_format})
        config = changed(tiny_config(), speculative_config=speculative)
        case = inspect(draft, tmp_path / family).case
        return problems(later_weights_stay_the_drafts, config, case)

    (problem,) = judged("dspark-speculators", "dummy")
    assert "lm_head.weight" in problem.allowed
    assert not judged("dspark-speculators", "auto")
    assert not judged("dflash2", "dummy")  # shares both in any case
