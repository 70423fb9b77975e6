# SPDX-License-Identifier: Apache-2.0
"""Rules about the layers that are read, and about `draft_window`: which drafts vLLM can give a window
that they were published without.
"""

from __future__ import annotations

from vllm_eagle_ext.draft.attention import WINDOW_OPTION
from vllm_eagle_ext.draft.findings import Problem, Problems, Severity, key_problem, rule
from vllm_eagle_ext.draft.layer_ids import LIST_LAYERS, default_layer_ids
from vllm_eagle_ext.draft.spec import Case

_LEAVE = "leave the option out: the draft then attends as it was published"


def _refused(value: object, allowed: str, remedy: str = _LEAVE) -> Problem:
    return Problem(field=WINDOW_OPTION, value=value, allowed=allowed, remedy=remedy)


@rule(Severity.ERROR)
def draft_window_is_computed(case: Case) -> Problems:
    """The option `draft_window` excludes MLA, vLLM's classes, mixed causality and other windows."""
    window, spec = case.request.options.draft_window, case.spec
    if window is None:
        return
    # Classes of drafters without windows.
    if not spec.drafter.backbone.has_kv_heads:
        yield _refused(window, "none for a draft with latent attention, for which vLLM has no windows")
    if spec.drafter.uses_vllm_class:
        why = "vLLM's own classes, which compute it, were tried with the windows of its config.json only"
        yield _refused(window, f"none for {spec.drafter.published[0]}: {why}")
    # Layers that vLLM would confuse.
    if len({layer.causal for layer in spec.layers}) > 1:
        yield _refused(
            window,
            "none for a draft of causal and bidirectional layers, which vLLM tells apart by windows",
        )
    elif len(windows := {layer.window for layer in spec.layers}) > 1:
        published = min(window for window in windows if window and window != spec.draft_window)
        yield _refused(
            window,
            f"{published}, the window of the draft's other layers: vLLM has one for all",
            f"ask for {published}, or {_LEAVE}",
        )


@rule(Severity.ERROR)
def draft_window_holds_a_step(case: Case) -> Problems:
    """`draft_window` exceeds 1 + K."""
    window, k = case.spec.draft_window, case.request.k
    if window is not None and k is not None and window <= k + 1:
        yield _refused(
            window, f"at least {k + 2}: a step's own rows are 1 + K", f"ask for {k + 2} tokens or more"
        )


@rule(Severity.WARNING)
def draft_window_is_used(case: Case) -> Problems:
    """`draft_window` changes a layer."""
    option, spec = case.request.options.draft_window, case.spec
    if option is None or spec.draft_window is not None:
        return
    if option != "auto":
        why = "each layer was published with its own, which stays"
    elif spec.trained_length is None:
        why = "config.json has no max_position_embeddings, taken for the length of its training texts"
    else:
        why = f"its config.json has {spec.trained_length} positions, and no text is longer"
    yield _refused(option, f"no window, or a number of tokens: {why}")


@rule(Severity.WARNING, of="eagle3")
def aux_layers_are_stated(case: Case) -> Problems:
    """The config names the aux layers."""
    layers = case.spec.aux_layers
    if layers.published_ids is None and layers.layer_ids and "option" not in layers.rule:
        yield key_problem(
            "eagle_aux_hidden_state_layer_ids",
            None,
            allowed=f"its trained layers; {list(layers.layer_ids)} is taken, EAGLE-3's default",
            remedy=f"if acceptance is low, {LIST_LAYERS}",
        )


@rule(Severity.WARNING, of="eagle3")
def aux_layer_ids_may_be_inputs(case: Case) -> Problems:
    """Nested aux layer ids, read as outputs, differ from EAGLE-3's default inputs."""
    layers = case.spec.aux_layers
    default = default_layer_ids(case.target.num_layers)
    if layers.published_ids == default and layers.layer_ids != default and "option" not in layers.rule:
        yield Problem(
            field="nested aux layer ids of the draft",
            value=list(default),
            allowed=f"ids of outputs, so the inputs of layers {list(layers.layer_ids)}; these very "
            "numbers are EAGLE-3's default aux layers, the inputs of 2, N//2, N-3",
            remedy='compare the acceptance rate with {"eagle_ext": {"aux_layers": "input"}}',
        )


@rule(Severity.WARNING)
def aux_order_is_unambiguous(case: Case) -> Problems:
    """Aux layer ids ascend, or the order of `fc` is known. Trainers differ under the same key."""
    layers = case.spec.aux_layers
    blocks = layers.blocks
    if blocks and blocks.doubt:
        taken = {
            "list": f"the blocks of fc and fc_norm are permuted to {list(layers.layer_ids)} while they "
            "are loaded, as vLLM captures them",
            "layers": f"the blocks of fc and fc_norm follow the layers, {list(layers.layer_ids)}, and "
            "stay as they are",
        }
        other = layers.listed if blocks.follows == "layers" else layers.layer_ids
        option = f'{{"eagle_ext": {{"aux_layers": {list(other)}}}}}'
        yield Problem(
            field="order of the draft's aux layers",
            value=list(layers.published_ids or layers.listed),
            allowed=f"any; {taken[blocks.follows]}: {blocks.doubt}",
            remedy=f"if acceptance is near zero, set {option}, the other order",
        )


@rule(Severity.ERROR)
def aux_count_is_consistent(case: Case) -> Problems:
    """`num_aux_hidden_states` and `num_aux_layers` count the aux layers."""
    count = len(case.spec.aux_layers.layer_ids)
    for key in ("num_aux_hidden_states", "num_aux_layers"):
        number = getattr(case.config, key)
        if number is not None and number != count and case.spec.fuses_aux_states:
            yield key_problem(
                key,
                number,
                allowed=f"{count}, the number of aux layers ({case.spec.aux_layers.rule})",
                remedy=LIST_LAYERS,
            )
