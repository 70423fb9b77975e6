"""The description of an engine that a start makes from vLLM's objects is the one that was foreseen."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.engine import TINY, has_gpu
from vllm_eagle_ext.engine import EngineFacts
from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.options import Options, parse_options
from vllm_eagle_ext.preflight import of_vllm
from vllm_eagle_ext.preflight.check import CheckRequest, CheckResult, run_check

pytestmark = [
    pytest.mark.skipif(has_gpu(), reason="asks for what vLLM's CPU platform does"),
    pytest.mark.promise("`check` says what a start would say"),
]
# Fields that may differ, and why.
DIFFERS = {
    "is_foreseen": "says which of the two it is",
    "platform_why": "is for readers of `check`",
    "cuda": "follows from torch, which a foreseen engine does not ask; a CPU has none",
    "cpu_kernels": "are told from the CPU's flags; test_cpu_kernels.py compares their answers",
    "packs_convolutions": "only torch knows; taken to be so",
    "registered": "only vLLM knows which architectures it has",
    "text": "vLLM adds defaults to what config.json states",
    "image_token_id": "transformers adds a default",
    "speculative": "a start sees method, model and K in it",
    "max_model_len": "a start has the target's where none is asked for",
}
# Compared fields that no row changes, and why.
SAME_HERE = {
    **dict.fromkeys(
        (
            "release", "release_is_known", "platform", "capability", "has_triton", "runner",
        ),
        "one vLLM on one CPU",
    ),
    "hands_out_states": "the tiny targets do: test_capture.py",
    "target_head_is_quantised": "the tiny targets' are plain: test_draft_vocabulary.py",
    "vllm_replays": "vLLM refuses the flag for these targets: test_apply_scheme.py",
    "image_class": "the tiny targets take no images: test_multimodal.py",
    "pipeline_parallel_size": "both refuse it",
    "prompt_embeds": "both refuse them on V1",
    "context_parallel_size": "vLLM refuses it on a CPU",
    "microbatches": "vLLM refuses them on a CPU",
}  # fmt: skip
PAIRS = {
    "postnorm": ("target", "eagle3", 4),
    "gated": ("target", "eagle3", 4),
    "dflash": ("hybrid_target", "dflash", 7),
}
KEYWORDS: list[dict[str, Any]] = [
    {},
    {"max_model_len": 128},
    {"override_generation_config": {"min_p": 0.1}},
    {"enable_prompt_embeds": True},
    {"tensor_parallel_size": 2},
    {"enable_prefix_caching": False},
    {"disable_hybrid_kv_cache_manager": True},
    {"kv_offloading_size": 1.0},
    {"enable_lora": True},
    {"enable_lora": True, "lora_target_modules": ["q_proj"]},
    {"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"},
    {"dtype": "float32"},
    {"dtype": "float16"},
    {"dtype": "bfloat16"},
    {"load_format": "dummy"},
    {"data_parallel_size": 2},
    {"gdn_prefill_backend": " Triton"},
    {"pipeline_parallel_size": 2},
    {"tensor_parallel_size": 3},
    {"enable_prefix_caching": True},
    {"kv_transfer_config": {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}},
    {"hf_overrides": {"image_token_index": 7}},
    {"mamba_ssm_cache_dtype": "bfloat16"},
    {"weight_transfer_config": {"backend": "ipc"}},
    {"weight_transfer_config": {}},
]
SPECULATIVE: list[dict[str, Any]] = [
    {"num_speculative_tokens_per_batch_size": [[1, 4, 4], [5, 8, 0]]},
    {"rejection_sample_method": "block"},
    {"draft_load_config": {}},
    {"quantization": "fp8"},
    {"enable_adaptive_verification": True},
    {"draft_tensor_parallel_size": 1},
    {"draft_load_config": {"load_format": "dummy"}},
]
OPTIONS: list[dict[str, Any]] = [
    {"strict": False}, {"hybrid_state": "replay"}, {"hybrid_state": "per_token"},
    {"hybrid_state": "auto"},
    {"replay_kernels": "sequential"}, {"draft_window": 64}, {"norm_output": "checkpoint"},
    {"aux_layers": "auto"}, {"gate_layout": "interleaved"}, {"untested_vllm": True},
]  # fmt: skip
ASKED = [
    *((keywords, {}, {}) for keywords in KEYWORDS),
    *(({}, keys, {}) for keys in SPECULATIVE),
    *(({}, {}, options) for options in OPTIONS),
]


def started(draft, keywords, speculative, options) -> EngineFacts:
    """As `build.py` has it, once vLLM has settled method and K."""
    from vllm.config import ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    target, method, k = PAIRS[draft]
    given = {"method": method, "model": str(TINY / draft), "num_speculative_tokens": k} | speculative
    engine_args = EngineArgs(
        model=str(TINY / target), skip_tokenizer_init=True, speculative_config=given,
        additional_config={"eagle_ext": options}, **{"enable_prefix_caching": False} | keywords,
    )  # fmt: skip
    model_config = engine_args.create_model_config()
    parsed = parse_options(engine_args.additional_config)
    engine = of_vllm.engine_of_vllm(engine_args, model_config, parsed)
    ranks = ParallelConfig(tensor_parallel_size=engine_args.tensor_parallel_size)
    config = engine_args.create_speculative_config(model_config, ranks)
    return of_vllm.settled(engine, engine_args, config)


def checked_as(draft, keywords, speculative, options) -> CheckResult:
    target, method, k = PAIRS[draft]
    request = CheckRequest(
        draft=str(TINY / draft), target=str(TINY / target), k=k, method=method, options=options,
        speculative=speculative, engine={"enable_prefix_caching": False} | keywords,
    )  # fmt: skip
    return run_check(request)


@pytest.mark.parametrize("draft", PAIRS)
@pytest.mark.parametrize(("keywords", "speculative", "options"), ASKED, ids=str)
def test_a_start_describes_what_was_foreseen(draft, keywords, speculative, options, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    checked = checked_as(draft, keywords, speculative, options)
    if checked.exit_code:
        with pytest.raises(EagleExtError) as refused:
            started(draft, keywords, speculative, options)
        assert refused.value.field == checked.inspection.causes[0].problem.field
        return
    found, expected = started(draft, keywords, speculative, options), checked.engine
    for field in dataclasses.fields(EngineFacts):
        if field.name not in DIFFERS:
            mine, theirs = getattr(expected, field.name), getattr(found, field.name)
            assert mine == theirs, field.name
    assert {key: found.text.get(key) for key in expected.text} == dict(expected.text)
    assert expected.max_model_len in (None, found.max_model_len)
    assert set(expected.speculative) <= set(found.speculative)


def test_every_option_is_tried():
    assert {name for asked in OPTIONS for name in asked} >= set(Options.model_fields) - {
        "enabled",  # nothing is described then
        "adaptive_verification",  # vLLM's key for it needs a GPU
        "draft_vocabulary",  # a file: test_draft_vocabulary.py
    }


def test_what_may_differ_is_a_field():
    assert set(DIFFERS) <= {field.name for field in dataclasses.fields(EngineFacts)}


def test_every_compared_field_changes_in_some_row():
    """Otherwise a constructor that ignores what is asked would not be seen."""
    served = [one for d in PAIRS for asked in ASKED if not (one := checked_as(d, *asked)).exit_code]
    unchanged = {
        field.name
        for field in dataclasses.fields(EngineFacts)
        if field.name not in DIFFERS
        and len({repr(getattr(one.engine, field.name)) for one in served}) == 1
    }
    assert unchanged == set(SAME_HERE)
