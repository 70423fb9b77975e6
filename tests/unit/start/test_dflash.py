"""DFlash drafts: what reaches the runners."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import write_target
from tests.support.drafts import valid_draft, write
from tests.unit.start.configs import before_the_engine, speculative_config
from vllm_eagle_ext.errors import SpeculativeConfigError


class TestDFlash:
    @pytest.fixture
    def draft(self):
        return valid_draft("dflash")

    def hf_config(self, target, tmp_path, draft, made_by=speculative_config):
        path = write(draft, tmp_path)
        config = made_by(target, path, method="dflash", num_speculative_tokens=draft.k)
        assert config.draft_model_config.architecture == "DFlashEagleExtQwen3ForCausalLM"
        return config.draft_model_config.hf_config

    def test_aux_layers_for_both_runners(self, target, tmp_path, draft):
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

    def test_a_start_warns_of_the_targets_factor_as_check_does(self, target, tmp_path, draft, vllm_log):
        write_target(
            target, architectures=["GraniteForCausalLM"], model_type="granite", embedding_multiplier=12.0
        )
        before_the_engine(target, write(draft, tmp_path), method="dflash", num_speculative_tokens=7)
        assert vllm_log.containing("the target multiplies its embeddings by 12")

    def test_keys_at_top_level_reach_both_runners(self, target, tmp_path, draft):
        """As TorchSpec writes them; vLLM's V1 runner ignores these ids, and its config class is ours."""
        block = draft.config.pop("dflash_config")
        draft.config |= {**block, "model_type": "dflash", "num_target_layers": 3}
        hf_config = self.hf_config(target, tmp_path, draft)
        assert hf_config.eagle_aux_hidden_state_layer_ids == [2, 4, 6]
        assert hf_config.dflash_config["mask_token_id"] == block["mask_token_id"]

    @pytest.mark.parametrize("key", ["mrope_section", "xdrope_section"])
    @pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
    def test_sections_of_the_rope_are_dropped(self, target, tmp_path, draft, name, key):
        """vLLM's V1 runner does not start with them, and positions of text are the same in each."""
        sections = {key: [4, 2, 2], "mrope_interleaved": True}
        theta = draft.config.pop("rope_theta")
        draft.config[name] = {"rope_type": "default", "rope_theta": theta, **sections}
        path = write(draft, tmp_path)
        config = speculative_config(target, path, method="dflash", num_speculative_tokens=draft.k)
        assert not config.draft_model_config.uses_mrope
        rope = config.draft_model_config.hf_config.rope_parameters
        assert rope == {"rope_type": "default", "rope_theta": theta}

    def test_rope_table_covers_the_context(self, target, tmp_path, draft):
        draft.config["max_position_embeddings"] = 64
        assert self.hf_config(target, tmp_path, draft).max_position_embeddings == 512

    @pytest.mark.parametrize(
        ("key", "windowed", "full"), [(None, True, False), (False, True, False), (True, False, False)]
    )
    def test_speculators_flag_says_nothing_of_full_layers(
        self, target, tmp_path, key, windowed, full, monkeypatch
    ):
        from vllm.model_executor.models.qwen3_dflash import _dflash_layer_causal

        draft = valid_draft("dflash-speculators")
        layer = draft.config["transformer_layer_config"]
        layer |= {"sliding_window": 32, "is_causal": True}  # not speculators'
        layer["layer_types"] = ["sliding_attention", "full_attention"]
        if key is not None:
            draft.config["sliding_window_non_causal"] = key
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")  # V1 has no mixed layers
        hf_config = self.hf_config(target, tmp_path, draft, before_the_engine)
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
