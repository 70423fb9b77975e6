"""The intake on vLLM's own EngineArgs: what reaches the runners, and what is refused before them."""

from __future__ import annotations

import logging
import types

import pytest
import torch

from tests.support.checkpoints import draft_config, draft_tensors, tiny_draft, write_draft, write_target
from tests.support.drafts import FAMILIES, valid_draft, write
from vllm_eagle_ext import __version__, compat, plugin
from vllm_eagle_ext.errors import (
    OptionsError,
    SpeculativeConfigError,
    UnsupportedDraftError,
    UnsupportedVllmError,
)

DRAFTER = "Eagle3EagleExtLlamaForCausalLM"


@pytest.fixture(autouse=True)
def _registered():
    plugin.register()


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("target"))


def speculative_config(target, draft, *, options=None, arguments=None, **keys):
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    given = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": 4, **keys}
    engine_args = EngineArgs(
        model=str(target),
        skip_tokenizer_init=True,
        speculative_config={k: v for k, v in given.items() if v is not None} or None,
        additional_config={"eagle_ext": options} if options is not None else {},
        **(arguments or {}),
    )
    return engine_args.create_speculative_config(engine_args.create_model_config(), ParallelConfig())


def test_boundaries_and_flags_where_both_runners_read_them(target, tmp_path):
    config = speculative_config(target, tiny_draft(tmp_path, num_aux=5))
    hf_config = config.draft_model_config.hf_config
    assert hf_config.eagle_aux_hidden_state_layer_ids == [2, 3, 4, 5, 6]
    assert hf_config.eagle_config["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4, 5, 6]
    assert hf_config.num_aux_hidden_states == 5
    assert (hf_config.fc_norm, hf_config.norm_output) == (True, True)
    assert hf_config.eagle_ext["version"] == __version__
    assert config.draft_model_config.architecture == DRAFTER


def test_both_runners_resolve_the_same_boundaries(target, tmp_path):
    from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    config = speculative_config(target, tiny_draft(tmp_path, num_aux=5))
    v1_runner = object.__new__(GPUModelRunner)
    v1_runner.speculative_config = config
    assert v1_runner._get_eagle3_aux_layers_from_config() == (2, 3, 4, 5, 6)
    assert get_eagle3_aux_layers_from_config(config) == (2, 3, 4, 5, 6)


def test_native_draft_gets_no_norm(target, tmp_path):
    draft = tiny_draft(tmp_path, num_aux=3, post_norm=False, eagle_config=None)
    hf_config = speculative_config(target, draft).draft_model_config.hf_config
    assert (hf_config.fc_norm, hf_config.norm_output) == (False, False)
    assert hf_config.eagle_aux_hidden_state_layer_ids == [2, 4, 5]


def test_flags_nested_in_eagle_config_are_lifted(target, tmp_path):
    config = draft_config(num_aux=3, post_norm=False)
    config["eagle_config"] |= {"fc_norm": True, "norm_output": True}
    draft = write_draft(tmp_path, config, draft_tensors(num_aux=3, post_norm=True))
    hf_config = speculative_config(target, draft).draft_model_config.hf_config
    assert (hf_config.fc_norm, hf_config.norm_output) == (True, True)


def test_spec_flags_of_the_command_line(target, tmp_path):
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    engine_args = EngineArgs(
        model=str(target),
        skip_tokenizer_init=True,
        spec_method="eagle3",
        spec_model=str(tiny_draft(tmp_path, num_aux=5)),
        spec_tokens=3,
    )
    config = engine_args.create_speculative_config(engine_args.create_model_config(), ParallelConfig())
    assert config.draft_model_config.architecture == DRAFTER
    assert config.num_speculative_tokens == 3


def test_one_line_says_boundaries_rule_and_drafter(target, tmp_path, vllm_log):
    draft = tiny_draft(tmp_path, num_aux=5)
    speculative_config(target, draft)
    speculative_config(target, draft)
    (record,) = vllm_log.containing("target boundaries")
    assert record.levelno == logging.INFO
    for word in (
        str(draft),
        "[2, 3, 4, 5, 6] of 8",
        "boundary = id + 1",
        DRAFTER,
        "fc_norm, norm_output",
    ):
        assert word in record.getMessage()


def test_default_boundaries_are_a_warning(target, tmp_path, vllm_log):
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

    def test_switched_off(self, target, tmp_path):
        draft = tiny_draft(tmp_path, num_aux=3)
        config = speculative_config(target, draft, options={"enabled": False})
        hf_config = config.draft_model_config.hf_config
        assert config.draft_model_config.architecture == "LlamaForCausalLMEagle3"
        assert not hasattr(hf_config, "eagle_aux_hidden_state_layer_ids")

    def test_stock_drafter_is_still_vllms(self):
        from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM
        from vllm.model_executor.models.registry import ModelRegistry

        entry = ModelRegistry.models["LlamaForCausalLMEagle3"]
        assert entry.load_model_cls() is Eagle3LlamaForCausalLM


class TestRefused:
    def test_unknown_option_even_without_a_draft(self, target):
        with pytest.raises(OptionsError, match="aux_layer is 'auto'"):
            speculative_config(target, "", method=None, model=None, options={"aux_layer": "auto"})

    @pytest.mark.parametrize("k", [0, -1])
    def test_k_below_1(self, target, tmp_path, k):
        with pytest.raises(SpeculativeConfigError, match=rf"num_speculative_tokens is {k}\."):
            speculative_config(target, tiny_draft(tmp_path), num_speculative_tokens=k)

    def test_hidden_size(self, tmp_path):
        target = write_target(tmp_path / "wide", hidden_size=128)
        with pytest.raises(UnsupportedDraftError, match="128, the target's hidden size"):
            speculative_config(target, tiny_draft(tmp_path / "draft"))

    def test_no_model(self, target):
        with pytest.raises(SpeculativeConfigError, match=r"speculative_config\.model is None"):
            speculative_config(target, "", model=None)

    def test_no_config_json(self, target, tmp_path):
        (tmp_path / "model.safetensors").write_bytes(b"")
        with pytest.raises(UnsupportedDraftError, match=r"config\.json"):
            speculative_config(target, tmp_path)


def test_method_that_vllm_takes_from_the_path(target, tmp_path):
    config = speculative_config(target, tiny_draft(tmp_path / "my_eagle3_head", num_aux=5), method=None)
    assert config.method == "eagle3"
    assert config.draft_model_config.architecture == DRAFTER


def test_null_target_hidden_size_means_the_targets(target, tmp_path):
    draft = tiny_draft(tmp_path, num_aux=5, target_hidden_size=None)
    assert speculative_config(target, draft).draft_model_config.hf_config.target_hidden_size == 64


def test_other_storage_is_left_to_vllm_with_a_warning(vllm_log):
    from vllm_eagle_ext.intake import build
    from vllm_eagle_ext.intake.request import DraftRequest
    from vllm_eagle_ext.options import Options

    request = DraftRequest("eagle3", "s3://bucket/draft", 4)
    assert build._inspect(request, None, None, Options()) is None
    assert vllm_log.containing("not checked")


class TestOutsideTheTestedRange:
    @pytest.fixture(autouse=True)
    def _unknown_vllm(self, monkeypatch):
        monkeypatch.setattr(compat, "vllm_version", lambda: "0.99.0")

    def test_a_draft_that_needs_us_is_refused_with_the_reason(self, target, tmp_path):
        with pytest.raises(UnsupportedVllmError) as caught:
            speculative_config(target, tiny_draft(tmp_path, num_aux=5))
        for word in ("0.99.0", ">=0.32,<0.34", "nested in eagle_config", "untested_vllm"):
            assert word in str(caught.value)

    def test_a_draft_that_vllm_serves_rightly_is_left_to_it(self, target, tmp_path):
        draft = tiny_draft(tmp_path, num_aux=3, post_norm=False, eagle_config=None)
        config = speculative_config(target, draft)
        assert config.draft_model_config.architecture == "LlamaForCausalLMEagle3"
        assert not hasattr(config.draft_model_config.hf_config, "eagle_ext")

    @pytest.mark.parametrize("draft", [None, "post_norm"])
    def test_a_changed_host_keeps_working(self, tmp_path, draft):
        """Another signature and other attributes: whatever our code runs into, vLLM goes on."""

        class EngineArgs:
            def __init__(self):
                self.speculative_config = draft and {
                    "method": "eagle3",
                    "model": str(tiny_draft(tmp_path, num_aux=5)),
                }

            def create_speculative_config(self, target_model_config, chunked, *, log_stats):
                return "built by vLLM"

        compat._wrap_create_speculative_config(types.SimpleNamespace(EngineArgs=EngineArgs))
        assert EngineArgs().create_speculative_config(object(), False, log_stats=True) == "built by vLLM"

    def test_goes_on_when_told_to(self, target, tmp_path):
        config = speculative_config(
            target, tiny_draft(tmp_path, num_aux=5), options={"untested_vllm": True}
        )
        assert config.draft_model_config.architecture == DRAFTER


def test_drafter_refuses_a_config_from_another_version():
    from vllm_eagle_ext.stamp import require_stamp, write_stamp

    hf_config = types.SimpleNamespace()
    with pytest.raises(UnsupportedDraftError, match="version of vllm-eagle-ext"):
        require_stamp(hf_config)
    write_stamp(hf_config)
    require_stamp(hf_config)
    hf_config.eagle_ext["version"] = "0.0.0"
    with pytest.raises(UnsupportedDraftError, match=r"'0\.0\.0'"):
        require_stamp(hf_config)


class TestDFlash:
    @pytest.fixture
    def draft(self):
        return valid_draft("dflash")

    def hf_config(self, target, tmp_path, draft, **keys):
        path = write(draft, tmp_path)
        config = speculative_config(
            target, path, method="dflash", num_speculative_tokens=draft.k, **keys
        )
        assert config.draft_model_config.architecture == "DFlashEagleExtQwen3ForCausalLM"
        return config.draft_model_config.hf_config

    def test_boundaries_for_both_runners(self, target, tmp_path, draft):
        from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        path = write(draft, tmp_path)
        config = speculative_config(target, path, method="dflash", num_speculative_tokens=7)
        v1_runner = object.__new__(GPUModelRunner)
        v1_runner.speculative_config = config
        assert v1_runner._get_eagle3_aux_layers_from_config() == (2, 4, 6)
        assert get_eagle3_aux_layers_from_config(config) == (2, 4, 6)
        nested = config.draft_model_config.hf_config.dflash_config
        assert nested["target_layer_ids"] == [1, 3, 5]

    def test_keys_at_top_level_reach_both_runners(self, target, tmp_path, draft):
        """As TorchSpec writes them; vLLM's V1 runner ignores these ids, and its config class is ours."""
        block = draft.config.pop("dflash_config")
        draft.config |= {**block, "model_type": "dflash", "num_target_layers": 3}
        hf_config = self.hf_config(target, tmp_path, draft)
        assert hf_config.eagle_aux_hidden_state_layer_ids == [2, 4, 6]
        assert hf_config.dflash_config["mask_token_id"] == block["mask_token_id"]

    def test_rope_table_covers_the_context(self, target, tmp_path, draft):
        draft.config["max_position_embeddings"] = 64
        assert self.hf_config(target, tmp_path, draft).max_position_embeddings == 512

    @pytest.mark.parametrize(
        ("key", "windowed", "full"), [(None, True, False), (False, True, False), (True, False, False)]
    )
    def test_speculators_flag_says_nothing_of_full_layers(self, target, tmp_path, key, windowed, full):
        from vllm.model_executor.models.qwen3_dflash import _dflash_layer_causal

        draft = valid_draft("dflash-speculators")
        layer = draft.config["transformer_layer_config"]
        layer |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32}
        if key is not None:
            draft.config["sliding_window_non_causal"] = key
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compat, "model_runner", lambda **_: "v2")  # V1 has no mixed layers
            hf_config = self.hf_config(target, tmp_path, draft)
        assert [_dflash_layer_causal(hf_config, i) for i in range(2)] == [windowed, full]
        assert hf_config.sliding_window == 32

    def test_k_beyond_the_block(self, target, tmp_path, draft):
        path = write(draft, tmp_path)
        with pytest.raises(SpeculativeConfigError, match=r"num_speculative_tokens is 8\..*up to 7"):
            speculative_config(target, path, method="dflash", num_speculative_tokens=8)
        config = speculative_config(
            target, path, method="dflash", num_speculative_tokens=8, options={"strict": False}
        )
        assert config.num_speculative_tokens == 8


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

    def test_dflash_by_its_path(self, target, tmp_path):
        path = write(valid_draft("dflash"), tmp_path / "my_dflash_head")
        config = speculative_config(target, path, method=None, num_speculative_tokens=7)
        assert config.draft_model_config.architecture == "DFlashEagleExtQwen3ForCausalLM"

    def test_a_plain_draft_model_is_left_alone(self, tmp_path):
        target = write_target(tmp_path / "target")
        config = speculative_config(target, write_target(tmp_path / "small"), method="draft_model")
        assert not hasattr(config.draft_model_config.hf_config, "eagle_ext")


class TestErrorsComeBeforeVllms:
    """Each of these is something that vLLM answers with an error of its own, or not at all."""

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"architectures": ["NoSuchDraft"]}, "'NoSuchDraft'.*LlamaForCausalLMEagle3"),
            ({"architectures": ["LlamaForCausalLMEagle3Gated"]}, "gates its MLP"),
            ({"architectures": None}, "architectures.*None"),
            ({"model_type": "no_such_type"}, "model_type.*'no_such_type'.*can read"),
            ({"model_type": "qwen3_next"}, "model_type.*multi-token-prediction"),
            ({"model_type": None}, "model_type.*None"),
            ({"hidden_act": "gelu"}, "hidden_act.*'gelu'"),
        ],
    )
    def test_identity(self, target, tmp_path, change, words):
        with pytest.raises(UnsupportedDraftError, match=words):
            speculative_config(target, tiny_draft(tmp_path, **change))

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


@pytest.mark.parametrize("family", FAMILIES)
def test_the_resolved_config_travels(target, tmp_path, family):
    """To workers as a pickle, into hashes and logs as JSON."""
    import pickle

    draft = valid_draft(family)
    keys = {"parallel_drafting": True} if family == "p-eagle" else {}
    path = write(draft, tmp_path)
    config = speculative_config(
        target, path, method=draft.method, num_speculative_tokens=draft.k, **keys
    )
    hf_config = config.draft_model_config.hf_config
    copied = pickle.loads(pickle.dumps(hf_config))
    assert copied.eagle_ext == hf_config.eagle_ext
    assert hf_config.eagle_ext["version"] in hf_config.to_json_string()
