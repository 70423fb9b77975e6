"""Pipeline stages are refused before anything is loaded; other ways to spread an engine pass."""

from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import HIDDEN, VOCAB, tiny_draft, write_target
from tests.support.described import problems
from tests.support.drafts import inspect, valid_draft, write
from vllm_eagle_ext import plugin
from vllm_eagle_ext.engine_rules.parallel import ranks_share_evenly
from vllm_eagle_ext.errors import SpeculativeConfigError

pytestmark = pytest.mark.promise("tensor parallel: what is divided, what is refused")

STAGES = {"pipeline_parallel_size": 2}


@pytest.fixture
def speculative(tmp_path, monkeypatch):
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    plugin.register()
    target = write_target(tmp_path / "target")

    def make(draft, method, k=4, runner="v1", options=None, keys=None, **parallel):
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(runner == "v2")))
        engine_args = EngineArgs(
            model=str(target),
            skip_tokenizer_init=True,
            speculative_config={"method": method, "model": str(draft), "num_speculative_tokens": k}
            | (keys or {}),
            additional_config={"eagle_ext": options or {}},
            **parallel,
        )
        model_config = engine_args.create_model_config()
        return engine_args.create_speculative_config(model_config, ParallelConfig())

    return make


@pytest.mark.promise("pipeline parallel is refused")
@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("family", ["post-norm", "dflash"])
def test_stages_are_refused_with_the_reason(speculative, tmp_path, runner, family):
    draft = valid_draft(family)
    path = write(draft, tmp_path / "draft")
    config = speculative(path, draft.method, draft.k, runner)
    assert "EagleExt" in config.draft_model_config.architecture
    with pytest.raises(SpeculativeConfigError, match="pipeline_parallel_size is 2") as caught:
        speculative(path, draft.method, draft.k, runner, **STAGES)
    assert f"on vLLM's {runner.upper()} runner" in str(caught.value)
    assert "--tensor-parallel-size" in caught.value.remedy


@pytest.mark.promise("but for a draft with embeddings of its own on V2")
def test_a_draft_with_embeddings_of_its_own_is_left_to_v2(speculative, tmp_path, vllm_log):
    """vLLM asks the target's layers, which the front end does not have."""
    draft = valid_draft("native")
    draft.tensors["embed_tokens.weight"] = torch.randn(VOCAB, HIDDEN).bfloat16()
    path = write(draft, tmp_path / "draft")
    config = speculative(path, "eagle3", draft.k, runner="v2", **STAGES)
    assert "EagleExt" in config.draft_model_config.architecture
    assert vllm_log.containing("pipeline_parallel_size is 2")
    with pytest.raises(SpeculativeConfigError, match="only the last stage has the drafter"):
        speculative(path, "eagle3", draft.k, runner="v1", **STAGES)


def test_disabled_leaves_stages_to_vllm(speculative, tmp_path):
    config = speculative(tiny_draft(tmp_path), "eagle3", options={"enabled": False}, **STAGES)
    assert config.draft_model_config.architecture == "LlamaForCausalLMEagle3"


def test_ranks_that_cannot_share_the_heads(speculative, tmp_path):
    """vLLM's own check, of the target, comes later, and its layers assert the rest in the workers."""
    draft = tiny_draft(tmp_path)
    with pytest.raises(SpeculativeConfigError, match="tensor_parallel_size is 3") as caught:
        speculative(draft, "eagle3", tensor_parallel_size=3)
    assert "a divisor of 2, num_attention_heads of the draft" in caught.value.allowed
    assert "key_value" not in caught.value.allowed  # one head, which every rank repeats


@pytest.mark.parametrize(
    ("text", "ranks", "words"),
    [
        ({"num_key_value_heads": 2}, 3, "a divisor or a multiple of 2, num_key_value_heads"),
        ({"linear_num_key_heads": 16}, 3, "a divisor of 16, linear_num_key_heads"),
        ({"num_key_value_heads": 2}, 4, None),
        ({"num_key_value_heads": 2, "kv_lora_rank": 512}, 3, None),
        ({"num_attention_heads": None}, 3, None),
    ],
    ids=str,
)
def test_of_a_target(text, ranks, words, tmp_path):
    case = inspect(valid_draft("native"), tmp_path).case
    found = problems(ranks_share_evenly, case, text=text, tensor_parallel_size=ranks)
    said = " ".join(one.allowed for one in found)
    assert ("of the target" in said) is (words is not None)
    assert words is None or words in said


@pytest.mark.parametrize("key", ["draft_tensor_parallel_size", "draft-tensor-parallel-size"])
def test_a_rank_of_the_drafts_own_changes_nothing(speculative, tmp_path, key):
    """vLLM builds its layers on the target's ranks all the same; the workers would fail."""
    with pytest.raises(SpeculativeConfigError, match="tensor_parallel_size is 3") as caught:
        speculative(tiny_draft(tmp_path), "eagle3", keys={key: 1}, tensor_parallel_size=3)
    assert "num_attention_heads of the draft" in caught.value.allowed


@pytest.mark.promise("two ranks, by Ray or not: such a config is taken")
@pytest.mark.parametrize(
    "parallel",
    [{"tensor_parallel_size": 2}, {"data_parallel_size": 2}, {"enable_expert_parallel": True}],
    ids=str,
)
def test_other_ways_pass(speculative, tmp_path, parallel):
    config = speculative(tiny_draft(tmp_path), "eagle3", **parallel)
    assert "EagleExt" in config.draft_model_config.architecture
