"""Outside the tested range: stock behaviour, but no draft that vLLM would serve wrongly."""

from __future__ import annotations

import types

import pytest
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import tiny_draft
from tests.unit.start.configs import DRAFTER, speculative_config
from vllm_eagle_ext import compat, plugin
from vllm_eagle_ext.errors import UnsupportedVllmError

pytestmark = pytest.mark.promise(
    "outside the tested range of vLLM one warning, and no config is changed"
)


class TestOutsideTheTestedRange:
    @pytest.fixture(autouse=True)
    def _unknown_vllm(self, monkeypatch):
        monkeypatch.setattr(compat, "vllm_version", lambda: "0.99.0")

    def test_a_draft_that_needs_this_package_is_refused_with_the_reason(self, target, tmp_path):
        with pytest.raises(UnsupportedVllmError) as caught:
            speculative_config(target, tiny_draft(tmp_path, num_aux=5))
        for word in ("0.99.0", ">=0.32,<0.34", "nested in eagle_config", "untested_vllm"):
            assert word in str(caught.value)

    def test_a_draft_whose_map_vllm_would_drop_is_refused(self, target, tmp_path):
        draft = tiny_draft(tmp_path, num_aux=3, post_norm=False, eagle_config=None)
        tensors = load_file(draft / "model.safetensors")
        tensors["draft_id_to_target_id"] = tensors.pop("d2t")
        save_file(tensors, draft / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(UnsupportedVllmError, match="knows no tensor draft_id_to_target_id"):
            speculative_config(target, draft)

    def test_a_draft_that_vllm_serves_rightly_is_left_to_it(self, target, tmp_path):
        draft = tiny_draft(tmp_path, num_aux=3, post_norm=False, eagle_config=None)
        config = speculative_config(target, draft)
        assert config.draft_model_config.architecture == "LlamaForCausalLMEagle3"
        assert not hasattr(config.draft_model_config.hf_config, "eagle_ext")

    @pytest.mark.parametrize("draft", [None, "post_norm"])
    def test_a_changed_host_keeps_working(self, tmp_path, draft):
        """Another signature and other attributes: whatever the preflight runs into, vLLM goes on."""

        class EngineArgs:
            def __init__(self):
                self.speculative_config = draft and {
                    "method": "eagle3",
                    "model": str(tiny_draft(tmp_path, num_aux=5)),
                }

            def create_speculative_config(self, target_model_config, chunked, *, log_stats):
                return "built by vLLM"

            def create_engine_config(self):
                """Is wrapped, too."""

        module = types.SimpleNamespace(EngineArgs=EngineArgs)
        compat._wrap_engine_args(module, plugin.build_speculative_config, plugin.judge_engine)
        assert EngineArgs().create_speculative_config(object(), False, log_stats=True) == "built by vLLM"

    def test_goes_on_when_told_to(self, target, tmp_path):
        config = speculative_config(
            target, tiny_draft(tmp_path, num_aux=5), options={"untested_vllm": True}
        )
        assert config.draft_model_config.architecture == DRAFTER
