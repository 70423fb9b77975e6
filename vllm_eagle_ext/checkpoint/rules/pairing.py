# SPDX-License-Identifier: Apache-2.0
"""Rules about draft and target, and about what the user asks of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from vllm_eagle_ext.checkpoint.case import Case
from vllm_eagle_ext.checkpoint.families import EAGLE3
from vllm_eagle_ext.checkpoint.findings import Problem, Severity, rule
from vllm_eagle_ext.checkpoint.spec import DraftSpec

_DEFAULT_THETA = {"llama": 10_000, "qwen3": 1_000_000, "deepseek": 10_000}


@rule(Severity.ERROR)
def target_width_fits(case: Case) -> Iterable[Problem]:
    """Without `target_hidden_size` the draft's own width is the width of the states it reads."""
    key = "target_hidden_size"
    stated = case.config.target_hidden_size
    # The speculators format writes null for "the target's".
    value = case.spec.hidden_size if stated is None else stated
    if not case.spec.fuses_aux_states and value == case.target.hidden_size:
        stated, value = None, case.spec.hidden_size  # it takes the target's last state as it is
    if value == case.target.hidden_size or (stated is None and _fc_is_of_the_targets_width(case)):
        return
    yield Problem(
        field=f"{'hidden_size' if stated is None else key} of the draft {case.spec.model!r}",
        value=value,
        allowed=f"{case.target.hidden_size}, the target's hidden size",
        remedy="serve the draft with the target it was trained for",
    )


def _fc_is_of_the_targets_width(case: Case) -> bool:
    fc = case.files.tensors.get("fc.weight")
    columns = len(case.spec.aux_layers.boundaries) * case.target.hidden_size
    return fc is not None and columns > 0 and fc.shape == (case.spec.hidden_size, columns)


@rule(Severity.ERROR, can_run=True)
def target_depth_fits(case: Case) -> Iterable[Problem]:
    """z-lab names the target's layers; TorchSpec counts the captured ones under the same key."""
    n, captured = case.target.num_layers, len(case.spec.aux_layers.boundaries)
    for key, allowed in (("num_target_layers", (n, captured)), ("target_num_hidden_layers", (n,))):
        stated = getattr(case.config, key)
        if stated is not None and stated not in allowed:
            yield Problem(
                field=f"{key} of the draft's config.json",
                value=stated,
                allowed=f"{n}, the target's number of layers",
                remedy="serve the draft with the target it was trained for",
            )


@rule(Severity.ERROR, families=EAGLE3)
def eagle3_is_causal(case: Case) -> Iterable[Problem]:
    """vLLM's decoder layer would attend to rows that are not there when it drafts."""
    if case.config.is_causal is False:
        yield Problem(
            field="is_causal of the draft's config.json",
            value=False,
            allowed="true, or no such key: an EAGLE-3 draft is autoregressive",
            remedy="use the config.json that was published with the draft",
        )


@rule(Severity.WARNING)
def rope_is_stated(case: Case) -> Iterable[Problem]:
    if case.spec.rope.theta is None:
        yield Problem(
            field="rope_theta of the draft's config.json",
            value=None,
            allowed=f"the value it was trained with; {_DEFAULT_THETA[case.spec.backbone]} is taken, "
            "the default of its model type",
            remedy="if acceptance is low, ask the publisher and state it in config.json",
        )


@rule(Severity.WARNING)
def rope_matches_the_target(case: Case) -> Iterable[Problem]:
    """Drafts may be trained with another rope than their target's; most are not."""
    draft, target = case.spec.rope, case.target.rope
    if draft.theta is None or target.theta is None:
        return
    if (draft.theta, draft.kind, draft.factor) != (target.theta, target.kind, target.factor):
        yield Problem(
            field="rope of the draft",
            value=str(draft),
            allowed=f"what it was trained with; the target has {target}",
            remedy="if acceptance is low, above all in long contexts, ask the publisher",
        )


@rule(Severity.NOTE)
def head_dim_is_stated(case: Case) -> Iterable[Problem]:
    if case.config.head_dim is None and case.spec.family != "mla":
        yield Problem(
            field="head_dim of the draft's config.json",
            value=None,
            allowed=f"the size of one head; {case.spec.heads.dim} is taken",
            remedy="nothing, if it is right",
        )


@rule(Severity.ERROR)
def heads_divide(case: Case) -> Iterable[Problem]:
    heads = case.spec.heads
    if heads.query % heads.kv:
        yield Problem(
            field="num_key_value_heads of the draft's config.json",
            value=heads.kv,
            allowed=f"a divisor of num_attention_heads, {heads.query}",
            remedy="use the config.json that was published with the draft",
        )


@rule(Severity.ERROR)
def layer_types_are_complete(case: Case) -> Iterable[Problem]:
    types = case.config.layer_types
    if types is not None and len(types) != case.spec.num_layers:
        yield Problem(
            field="layer_types of the draft's config.json",
            value=f"{len(types)} entries",
            allowed=f"{case.spec.num_layers}, one per layer",
            remedy="use the config.json that was published with the draft",
        )
    slides = [kind == "sliding_attention" for kind in types or ()]
    windows = [layer.window for layer in case.spec.layers]
    dflash = case.config.dflash_config if case.spec.family == "dflash" else None
    forced = dflash is not None and bool(dflash.use_swa)
    if (any(slides) or forced) and not any(windows):
        yield Problem(
            field="sliding_window of the draft's config.json",
            value=None,
            allowed="a positive integer, because layers of the draft slide",
            remedy="use the config.json that was published with the draft",
        )


@rule(Severity.WARNING)
def trained_length_covers_max_model_len(case: Case) -> Iterable[Problem]:
    trained, wanted = case.spec.trained_length, case.setting.max_model_len
    if trained is not None and wanted is not None and trained < wanted:
        yield Problem(
            field="positions that the draft was trained on",
            value=trained,
            allowed=f"at least max_model_len, {wanted}",
            remedy=f"expect acceptance to fall beyond {trained} tokens; lower --max-model-len if no "
            "request is longer",
        )


@rule(Severity.WARNING)
def k_is_within_the_trained_unroll(case: Case) -> Iterable[Problem]:
    trained, k = case.spec.trained_k, case.setting.k
    if trained is not None and k is not None and k > trained and case.spec.family != "dflash":
        yield Problem(
            field="num_speculative_tokens",
            value=k,
            allowed=f"up to {trained}, the number of tokens the draft was trained to unroll",
            remedy=f"compare the speed with {trained}: later positions are seldom accepted",
        )


def wanted_runner(
    spec: DraftSpec, *, parallel_drafting: bool = True, v2_needs_aux_states: bool = True
) -> tuple[Literal["v1", "v2"], str] | None:
    """The one runner of vLLM's that can draft with it, and why; None: both can."""
    windows = {layer.window for layer in spec.layers}
    if spec.family != "dflash" and not spec.fuses_aux_states and v2_needs_aux_states:
        return "v1", "vLLM's V2 runner hands aux states to every EAGLE-3 drafter"
    if spec.family == "p-eagle" and parallel_drafting:
        return "v1", "vLLM's V2 runner drafts in parallel for DFlash only"
    if spec.family == "dflash" and len(windows) > 1:
        return "v2", "vLLM's V1 runner has one KV cache group for all draft layers"
    return None


@rule(Severity.ERROR)
def runner_serves_it(case: Case) -> Iterable[Problem]:
    setting = case.setting
    wanted = wanted_runner(
        case.spec,
        parallel_drafting=bool(setting.parallel_drafting),
        v2_needs_aux_states=setting.v2_runner_needs_aux_states,
    )
    if wanted and setting.runner and setting.runner != wanted[0]:
        yield Problem(
            field="model runner",
            value=setting.runner,
            allowed=f"{wanted[0]} for this draft: {wanted[1]}",
            remedy=f"start vLLM with VLLM_USE_V2_MODEL_RUNNER={int(wanted[0] == 'v2')}",
        )


@rule(Severity.NOTE)
def runner_is_particular(case: Case) -> Iterable[Problem]:
    """Where it is not known which runner vLLM will choose."""
    if case.setting.runner is None and (wanted := wanted_runner(case.spec)):
        yield Problem(
            field="model runner",
            value=None,
            allowed=f"{wanted[0]} for this draft: {wanted[1]}",
            remedy=f"start vLLM 0.32 with VLLM_USE_V2_MODEL_RUNNER={int(wanted[0] == 'v2')}",
        )


RULES = (
    target_width_fits,
    target_depth_fits,
    eagle3_is_causal,
    rope_is_stated,
    rope_matches_the_target,
    head_dim_is_stated,
    heads_divide,
    layer_types_are_complete,
    trained_length_covers_max_model_len,
    k_is_within_the_trained_unroll,
    runner_serves_it,
    runner_is_particular,
)
