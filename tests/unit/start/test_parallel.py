"""Pipeline stages are refused before anything is loaded; other ways to spread an engine pass."""

from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import HIDDEN, VOCAB, tiny_draft
from tests.support.described import changed, problems, tiny_config, with_text
from tests.support.drafts import inspect, valid_draft, write
from tests.unit.start.configs import before_the_engine, speculative_config
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.start.rules.parallel import (
    pipeline_stages_can_draft,
    ranks_share_evenly,
)

pytestmark = pytest.mark.promise("tensor parallel: what is divided, what is refused")

STAGES = {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}


@pytest.mark.promise("pipeline parallel is refused")
@pytest.mark.parametrize("family", ["post-norm", "dflash"])
def test_stages_are_refused_with_the_reason(target, tmp_path, family, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    draft = valid_draft(family)
    keys = {"method": draft.method, "num_speculative_tokens": draft.k}
    with pytest.raises(SpeculativeConfigError, match="pipeline_parallel_size is 2") as caught:
        speculative_config(target, write(draft, tmp_path / "draft"), arguments=STAGES, **keys)
    assert "only the last stage has the drafter" in caught.value.allowed
    assert "--tensor-parallel-size" in caught.value.remedy


@pytest.mark.promise("but for a draft with embeddings of its own on V2")
@pytest.mark.parametrize("runs_v2", [False, True])
@pytest.mark.parametrize("has_own", [False, True])
def test_a_draft_with_embeddings_of_its_own_is_left_to_v2(tmp_path, has_own, runs_v2):
    """vLLM asks the target's layers, which the front end does not have."""
    draft = valid_draft("native")
    if has_own:
        draft.tensors["embed_tokens.weight"] = torch.randn(VOCAB, HIDDEN).bfloat16()
    case, plain = inspect(draft, tmp_path).case, changed(tiny_config(), use_v2_model_runner=runs_v2)
    config = changed(plain, parallel_config__pipeline_parallel_size=2)
    refused = problems(pipeline_stages_can_draft, config, case)
    assert len(refused) == (not (has_own and runs_v2))
    assert all(f"on vLLM's {'V2' if runs_v2 else 'V1'} runner" in p.allowed for p in refused)
    assert not problems(pipeline_stages_can_draft, plain, case)


def test_disabled_leaves_stages_to_vllm(target, tmp_path):
    disabled = {"arguments": STAGES, "options": {"enabled": False}}
    config = before_the_engine(target, tiny_draft(tmp_path), **disabled)
    assert config.draft_model_config.architecture == "LlamaForCausalLMEagle3"


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
def test_ranks_that_cannot_share_the_target(text, ranks, words, tmp_path):
    """vLLM itself refuses query heads alone; its layers assert the rest in the workers."""
    case = inspect(valid_draft("native"), tmp_path).case
    config = changed(tiny_config(), parallel_config__tensor_parallel_size=ranks)
    config = with_text(config, **{"num_attention_heads": 12, "num_key_value_heads": 12} | text)
    said = " ".join(problem.allowed for problem in problems(ranks_share_evenly, config, case))
    assert ("of the target" in said) is (words is not None)
    assert words is None or words in said


def test_ranks_that_cannot_share_the_draft(tmp_path):
    """A rank of the draft's own changes nothing: vLLM builds its layers on the target's ranks."""
    case = inspect(valid_draft("native"), tmp_path).case
    config = changed(
        tiny_config(), parallel_config__tensor_parallel_size=3,
        speculative_config__draft_parallel_config__tensor_parallel_size=1,
    )  # fmt: skip
    (problem,) = problems(ranks_share_evenly, config, case)
    assert (problem.field, problem.value) == ("tensor_parallel_size", 3)
    assert "a divisor of 2, num_attention_heads of the draft" in problem.allowed
    assert "num_key_value_heads of the draft" not in problem.allowed  # one, which every rank repeats


@pytest.mark.promise("two ranks, by Ray or not: such a config is taken")
@pytest.mark.parametrize("parallel", [{"tensor_parallel_size": 2}, {"data_parallel_size": 2}], ids=str)
def test_other_ways_pass(target, tmp_path, parallel):
    arguments = {"distributed_executor_backend": "mp"} | parallel
    config = speculative_config(target, tiny_draft(tmp_path), arguments=arguments)
    assert "EagleExt" in config.draft_model_config.architecture
