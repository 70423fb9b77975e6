# SPDX-License-Identifier: Apache-2.0
"""Rules about what the user asks of a draft: how many tokens, for how long texts, on which runner."""

from __future__ import annotations

from vllm_eagle_ext.draft.attention import can_have_a_window
from vllm_eagle_ext.draft.findings import Problem, Problems, Severity, rule
from vllm_eagle_ext.draft.spec import Case, DraftSpec, Runner

MOST_USEFUL_K = 10  # of an EAGLE-3 head: at 80 % accepted each, the tenth comes in one step of nine
MOST_K = 64  # of such a draft: at 95 % accepted each, position 64 is reached in 4 % of the steps


@rule(Severity.WARNING)
def trained_length_covers_max_model_len(case: Case) -> Problems:
    """The draft's positions cover `max_model_len`, or its windows do not pass them."""
    wanted = case.request.max_model_len
    if (trained := passed_positions(case.spec, wanted)) is None:
        return
    yield Problem(
        field="positions in the draft's config",
        value=trained,
        allowed=f"at least max_model_len, {wanted}",
        remedy=f"expect acceptance to fall beyond {trained} tokens, and vLLM's V1 runner to draft "
        "nothing where a text is longer than the draft's max_position_embeddings: "
        + (_COMPARE.format(trained) if can_have_a_window(case.spec.drafter) else "")
        + "lower --max-model-len if no request is longer",
    )


def passed_positions(spec: DraftSpec, length: int | None) -> int | None:
    """Return the draft's positions, where a text of this length passes them and no window helps."""
    trained = spec.trained_length
    if trained is None or length is None or trained >= length:
        return None
    windows = [layer.window for layer in spec.layers]
    return None if all(window is not None and window <= trained for window in windows) else trained


_COMPARE = (
    'compare it with the option {{"eagle_ext": {{"draft_window": "auto"}}}}, with which the draft '
    "attends only to its last {} tokens; "
)


@rule(Severity.ERROR)
def k_leaves_room_in_the_context(case: Case) -> Problems:
    """1 + K is below `max_model_len`."""
    k, room = case.request.k, case.request.max_model_len or case.target.max_position_embeddings
    if k is not None and room is not None and 0 < room <= k + 1:  # vLLM reports other lengths
        most = f"less than {room - 1}" if room > 2 else "none in so short a context"
        longer = f"raise max_model_len to at least {k + 2}"
        yield Problem(
            field="num_speculative_tokens",
            value=k,
            allowed=f"{most}: a step verifies 1 + K tokens, and max_model_len is {room}",
            remedy=f"use fewer, or {longer}" if room > 2 else longer,
        )


@rule(Severity.ERROR, can_run=True)
def k_can_pay(case: Case) -> Problems:
    """K is at most 64, but for drafts in one pass."""
    k, family = case.request.k, case.spec.family
    in_one_pass = family.fills_a_block or family.asks_for_parallel_drafting
    if k is not None and k > MOST_K and not in_one_pass:
        yield Problem(
            field="num_speculative_tokens",
            value=k,
            allowed=f"up to {MOST_K}: the draft runs once per token. Even where 95 % of each position "
            f"are accepted, a step reaches position {MOST_K} in 4 % of all cases",
            remedy="use 3 to 7, and measure what pays: vllm-eagle bench DRAFT --target TARGET -k 3,5,7",
        )


@rule(Severity.WARNING)
def gate_layout_has_a_gate(case: Case) -> Problems:
    """The option `gate_layout` needs a gate."""
    layout = case.request.options.gate_layout
    if layout is not None and case.spec.gate is None:
        yield Problem(
            field="additional_config.eagle_ext.gate_layout",
            value=layout,
            allowed="left out: the attention of this draft has no gate",
            remedy="leave the option out, or check that it is the draft you mean",
        )


@rule(Severity.WARNING)
def k_is_within_the_trained_unroll(case: Case) -> Problems:
    """K is within the trained unroll, or 10 for EAGLE-3."""
    trained, k, family = case.spec.trained_k, case.request.k, case.spec.family
    of = "the number of tokens the draft was trained to unroll"
    if trained is None and family.method == "eagle3":
        trained, of = MOST_USEFUL_K, "for a draft that does not say how many it was trained to unroll"
    if trained is not None and k is not None and trained < k <= MOST_K and not family.fills_a_block:
        yield Problem(
            field="num_speculative_tokens",
            value=k,
            allowed=f"up to {trained}, {of}: later positions are seldom accepted",
            remedy="measure what pays: vllm-eagle bench DRAFT --target TARGET -k 3,5,7",
        )


def wanted_runner(
    spec: DraftSpec, *, parallel_drafting: bool = True, before_033: bool = True
) -> tuple[Runner, str] | None:
    """Return the one runner of vLLM's that can draft with the spec, and why; None: both can."""
    family, windows = spec.family, {layer.window for layer in spec.layers}
    if family.runs_on_v2_only:
        return "v2", "vLLM computes its second head only on the V2 runner"
    if not spec.fuses_aux_states and before_033:
        return "v1", "vLLM's V2 runner hands aux states to every EAGLE-3 drafter"
    if family.asks_for_parallel_drafting and parallel_drafting:
        return "v1", "vLLM's V2 runner drafts in parallel for DFlash only"
    if family.mixes_windows_on_v2_only and len(windows) > 1:
        return "v2", "vLLM's V1 runner has one KV cache group for all draft layers"
    return None


@rule(Severity.ERROR)
def runner_serves_it(case: Case) -> Problems:
    """vLLM's runner, V1 or V2, supports the draft."""
    request = case.request
    wanted = wanted_runner(
        case.spec,
        parallel_drafting=bool(request.parallel_drafting),
        before_033=request.before_033,
    )
    if wanted and request.runner and request.runner != wanted[0]:
        yield _other_runner(request.runner, *wanted)


@rule(Severity.NOTE)
def runner_is_particular(case: Case) -> Problems:
    """The runner is known where only one supports the draft."""
    wanted = wanted_runner(case.spec, before_033=case.request.before_033)
    if case.request.runner is None and wanted:
        yield _other_runner("chosen by vLLM", *wanted)


def _other_runner(value: str, wanted: Runner, why: str) -> Problem:
    needs = ", on a GPU: that runner needs Triton" if wanted == "v2" else ""
    return Problem(
        field="model runner",
        value=value,
        allowed=f"{wanted} for this draft: {why}",
        remedy=f"start vLLM with VLLM_USE_V2_MODEL_RUNNER={int(wanted == 'v2')}{needs}",
    )
