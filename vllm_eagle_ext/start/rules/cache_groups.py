# SPDX-License-Identifier: Apache-2.0
"""Rules about drafts that vLLM's V1 runner cannot lay out, or cannot cut short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from vllm_eagle_ext.draft import Case, DraftSpec
from vllm_eagle_ext.draft.attention import WINDOW_OPTION
from vllm_eagle_ext.draft.findings import Problem, Problems, Severity, rule
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.start.rules.vllm_config import runner_of, schedule_of, text_of

SCHEDULE = "num_speculative_tokens_per_batch_size"


@rule(Severity.ERROR, can_run=True)
def draft_cache_lies_in_one_group(case: Case, config: Any) -> Problems:
    """On V1 the draft's layers lie in one KV-cache group.

    Layers like the target's full-attention ones are pooled with them, and the pool is cut where it
    outgrows the windowed layers by half.
    """
    if runner_of(config) != "v1" or config.scheduler_config.disable_hybrid_kv_cache_manager:
        return
    spec, text = case.spec, text_of(config)
    types = text.get("layer_types")
    kinds = Counter(map(str, types) if isinstance(types, list) else ())
    if text.get("num_kv_shared_layers"):  # keep no cache of their own
        return
    if spec.draft_window is not None and len(kinds) > 1:
        yield from _scattered_window(kinds, spec)
    if set(kinds) != {"full_attention", "sliding_attention"} or spec.num_layers == 1:
        return
    windowed = kinds["sliding_attention"]
    is_pooled = _shape_of_full_layers(text) == (spec.heads.kv, spec.heads.dim) and not any(
        layer.window for layer in spec.layers
    )
    if not is_pooled or not is_cut(kinds["full_attention"] + spec.num_layers, windowed):
        return
    yield Problem(
        field=f"num_hidden_layers of the draft {spec.model!r}",
        value=spec.num_layers,
        allowed=f"on vLLM's V1 runner, with a target of {kinds['full_attention']} full and {windowed} "
        "windowed layers, fewer: vLLM would cut the cache of the full ones in groups, and the draft's "
        "layers must lie in one",
        remedy="start with --disable-hybrid-kv-cache-manager, or on the V2 runner",
    )


def _scattered_window(kinds: Counter[str], spec: DraftSpec) -> Problems:
    """Refuse a window for which vLLM would cut the draft's cache. With a window of its own the draft is
    a kind of its own, cut where it outgrows a group."""
    sizes = [*kinds.values(), spec.num_layers]
    group = max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)
    if spec.num_layers > group:
        yield Problem(
            field=WINDOW_OPTION,
            value=spec.draft_window,
            allowed=f"no window, on vLLM's V1 runner with a target of {dict(kinds)} layers: vLLM "
            f"would cut the cache of the draft's {spec.num_layers} in groups of {group}",
            remedy="leave the option out, or start on the V2 runner",
        )


def _shape_of_full_layers(text: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return KV heads and head size, which Gemma 4 states per layer."""
    first = text["layer_types"].index("full_attention")
    of_layer = (text.get("per_layer_config") or {}).get(str(first)) or {}
    merged = {**text, **of_layer}
    return merged.get("num_key_value_heads"), merged.get("head_dim")


def is_cut(full: int, windowed: int) -> bool:
    """Say whether vLLM keeps so many full-attention layers, with windowed ones, in several groups."""
    return full >= 1.5 * windowed


@rule(Severity.ERROR, error=SpeculativeConfigError)
def shorter_drafts_stay_apart(case: Case, config: Any) -> Problems:
    """With `parallel_drafting` V1 drafts 0 or K tokens of EAGLE-3, no number between."""
    speculative, schedule = config.speculative_config, schedule_of(config) or []
    k = speculative.num_speculative_tokens
    has_fixed = has_fixed_blocks(
        speculative.method, runner_of(config), is_parallel=speculative.parallel_drafting
    )
    if has_fixed and any(0 < step[-1] < k for step in schedule):
        yield Problem(
            field=f"speculative_config.{SCHEDULE}",
            value=schedule,
            allowed=f"0 and {k}, no length between: vLLM's V1 runner always makes {k} tokens of an "
            "EAGLE-3 draft with parallel_drafting, and takes those of one request for another's in a "
            "step of fewer",
            remedy=f"name only 0 and {k} in the schedule, or leave the key out",
        )


def has_fixed_blocks(method: str | None, runner: str | None, *, is_parallel: bool | None) -> bool:
    """Find out whether a draft always makes K tokens in one pass, and is read as if it made fewer.

    vLLM 0.32's V1 runner fills K masks per request for EAGLE-3 (`llm_base_proposer.py`), and views what
    they give as rows of the step's length: tokens of one request become another's. DFlash fills as many
    masks as the step asks for. With 0 nothing of the pass is read.
    """
    return method == "eagle3" and bool(is_parallel) and runner != "v2"
