"""Drafts that one of vLLM's model runners serves alone."""

from __future__ import annotations

from tests.unit.draft.rules.broken import case
from tests.unit.draft.rules.changes import key

# fmt: off
CASES = [
    case(
        "runner_serves_it", "no_aux_on_v2", "no_aux", engine={"runner": "v2"},
        words=("model runner", "'v2'", "v1 for this draft", "VLLM_USE_V2_MODEL_RUNNER=0"),
    ),
    case(
        "runner_serves_it", "parallel_on_v2", "p-eagle",
        engine={"runner": "v2", "parallel_drafting": True},
        words=("'v2'", "v1 for this draft", "parallel"),
    ),
    case(
        "runner_serves_it", "mixed_windows_on_v1", "dflash",
        key("layer_types", ["sliding_attention", "full_attention"]), key("sliding_window", 64),
        engine={"runner": "v1"}, words=("'v1'", "v2 for this draft", "VLLM_USE_V2_MODEL_RUNNER=1"),
    ),
    case(
        "runner_is_particular", "no_aux", "no_aux", engine={"before_033": True},
        words=("model runner", "v1 for this draft", "VLLM_USE_V2_MODEL_RUNNER=0"),
    ),
    case(
        "runner_is_particular", "parallel", "p-eagle", words=("v1 for this draft", "in parallel"),
    ),
    case(
        "runner_is_particular", "mixed_windows", "dflash",
        key("layer_types", ["sliding_attention", "full_attention"]), key("sliding_window", 64),
        words=("v2 for this draft", "VLLM_USE_V2_MODEL_RUNNER=1"),
    ),
]
# fmt: on
