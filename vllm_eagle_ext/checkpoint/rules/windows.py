# SPDX-License-Identifier: Apache-2.0
"""Rules about `draft_window`: which drafts vLLM can give a window that they were published without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vllm_eagle_ext.checkpoint.attention import LayerAttention
from vllm_eagle_ext.checkpoint.case import Case
from vllm_eagle_ext.checkpoint.draft_window import OPTION, WindowOption
from vllm_eagle_ext.checkpoint.findings import Problem, Severity, rule
from vllm_eagle_ext.checkpoint.rope_config import Rope
from vllm_eagle_ext.drafter_classes import Drafter

_FIXED_TABLES = ("yarn", "deepseek_yarn")
_LEAVE = "leave the option out: the draft then attends as it was published"


def _refused(value: object, allowed: str, remedy: str = _LEAVE) -> Problem:
    return Problem(field=OPTION, value=value, allowed=allowed, remedy=remedy)


@rule(Severity.ERROR)
def draft_window_is_computed(case: Case) -> Iterable[Problem]:
    asked, spec = case.setting.draft_window, case.spec
    if asked is not None:
        yield from window_obstacles(
            asked, spec.draft_window, spec.served_by, spec.layers, spec.rope, case.setting.max_model_len
        )


def window_obstacles(
    asked: WindowOption,
    given: int | None,
    drafter: Drafter,
    layers: Sequence[LayerAttention],
    rope: Rope,
    max_model_len: int | None,
) -> Iterator[Problem]:
    """Yield what keeps a draft from the window that is asked for.

    Args:
        given: what layers that were published without a window are to have.
        layers: with it.
    """
    if not drafter.backbone.has_kv_heads:
        yield _refused(asked, "none for a draft with latent attention, for which vLLM has no windows")
    if drafter.is_vllms:
        yield _refused(asked, "none for a draft that vLLM's own classes serve")
    length, served = _rope_table(rope), max_model_len
    if length is not None and served is not None and length < served:
        yield _refused(
            asked,
            f"none for a {rope.kind} rope whose table ends at {length} positions, where "
            f"max_model_len is {served}: with a window drafts go on after it",
            f"lower --max-model-len to {length}, or {_LEAVE}",
        )
    if len({layer.causal for layer in layers}) > 1:
        yield _refused(
            asked,
            "none for a draft of causal and bidirectional layers, which vLLM tells apart by windows",
        )
    elif len(windows := {layer.window for layer in layers}) > 1:
        published = min(window for window in windows if window and window != given)
        yield _refused(
            asked,
            f"{published}, the window of the draft's other layers: vLLM has one for all",
            f"ask for {published}, or {_LEAVE}",
        )


def _rope_table(rope: Rope) -> int | None:
    """Return the positions in vLLM's table of a stretched rope; None: as many as it serves."""
    if rope.kind not in _FIXED_TABLES or not (rope.factor and rope.original_length):
        return None
    return int(rope.factor * rope.original_length)


@rule(Severity.ERROR)
def draft_window_holds_a_step(case: Case) -> Iterable[Problem]:
    window, k = case.spec.draft_window, case.setting.k
    if window is not None and k is not None:
        yield from too_narrow(window, k)


def too_narrow(window: int, k: int) -> Iterator[Problem]:
    if window <= k + 1:
        yield _refused(
            window, f"at least {k + 2}: a step's own rows are 1 + K", f"ask for {k + 2} tokens or more"
        )


@rule(Severity.WARNING)
def draft_window_is_used(case: Case) -> Iterable[Problem]:
    asked, spec = case.setting.draft_window, case.spec
    if asked is None:
        return
    if asked == "auto" and spec.trained_length is None:
        yield _refused(
            asked,
            "a number of tokens: the draft's config.json has no max_position_embeddings, which is taken "
            "for the length of its training texts",
            "state the length of its training texts",
        )
    elif asked == "auto" and spec.draft_window is None:
        yield _refused(
            asked,
            f"a number of tokens: the draft has {spec.trained_length} positions in its config.json, "
            "and no text is longer",
            "if acceptance falls in long texts all the same, state the length of its training texts",
        )
    elif asked != "auto" and spec.draft_window is None:
        yield _refused(asked, "no window: each layer was published with its own, which stays")


RULES = (draft_window_is_computed, draft_window_holds_a_step, draft_window_is_used)
