# SPDX-License-Identifier: Apache-2.0
"""Rules about what runs next to drafts, and what the speculative config makes of texts and lengths."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_eagle_ext.checkpoint import Case
from vllm_eagle_ext.checkpoint.findings import Problem, Severity, rule
from vllm_eagle_ext.engine import EngineFacts
from vllm_eagle_ext.engine_rules.speculative_keys import SAMPLING, fits
from vllm_eagle_ext.errors import HybridStateError, SpeculativeConfigError

_LOSSY = ("fly", "synthetic")  # "fly": since 0.33
SCHEDULER = "vllm_eagle_ext.schedulers.build_scheduler"  # which vLLM resolves and calls


@rule(Severity.ERROR, error=SpeculativeConfigError)
def draft_length_fits(case: Case) -> Iterable[Problem]:
    """Refuse a `max_model_len` of the draft beyond its positions or the target's length."""
    asked = case.engine.speculative.get("max_model_len")
    if asked is None or not fits(int, asked):
        return
    stretch = case.spec.rope.factor or 1 if case.spec.rope.stretches_length else 1
    positions = case.config.max_position_embeddings
    lengths = (
        None if positions is None else int(positions * stretch),
        case.engine.max_model_len or case.target.max_position_embeddings,
    )
    most = min((length for length in lengths if length is not None), default=None)
    if most is not None and int(asked) > most:
        yield Problem(
            field="speculative_config.max_model_len",
            value=asked,
            allowed=f"up to {most}, what the draft's config.json and the target's length allow",
            remedy="leave the key out: vLLM takes the most that both allow",
        )


@rule(Severity.WARNING)
def texts_stay_the_targets(case: Case) -> Iterable[Problem]:
    """Warn of a verification whose texts are not those of the target without a draft."""
    method = case.engine.speculative.get(SAMPLING)
    if method in _LOSSY:
        yield Problem(
            field=f"speculative_config.{SAMPLING}",
            value=method,
            allowed='"standard" or "block" for the texts of the target: this one accepts drafts that '
            "the target would reject, and texts differ from those without a draft",
            remedy="leave the key out, unless other texts are what you want",
        )


@rule(Severity.WARNING)
def one_length_stops_no_drafts(case: Case) -> Iterable[Problem]:
    """Warn of a length of the draft that V1 holds against the longest request of each step."""
    engine, key = case.engine, "max_model_len"
    asked, served = engine.speculative.get(key), engine.max_model_len
    if type(asked) is not int or engine.runner == "v2" or case.spec.draft_window is not None:
        return
    if served is None or asked < served:
        yield Problem(
            field=f"speculative_config.{key}",
            value=asked,
            allowed="none, or the engine's: while one request is longer, vLLM's V1 runner drafts for no "
            "request at all",
            remedy="leave the key out: a draft costs no more in long texts; draft_window bounds what it "
            "reads",
        )


@rule(Severity.WARNING)
def adapters_meet_their_rows(case: Case) -> Iterable[Problem]:
    """Warn of adapters of the output layer on V2, which matches them to requests instead of rows."""
    if case.engine.lora_on_head and case.engine.runner == "v2":
        yield Problem(
            field="enable_lora",
            value=True,
            allowed="adapters that leave lm_head as it is, on vLLM's V2 runner with a draft: it gives "
            "rows of drafted tokens the lm_head adapter of another request, or none, and such texts are "
            "wrong",
            remedy="name the modules of your adapters without lm_head in --lora-target-modules, or set "
            "VLLM_USE_V2_MODEL_RUNNER=0",
        )


@rule(Severity.WARNING)
def default_requests_are_served(case: Case) -> Iterable[Problem]:
    """Warn of a min_p in the target's default sampling, which vLLM refuses with drafts."""
    default = case.engine.default_min_p
    if isinstance(default, int | float) and default > 0:
        yield Problem(
            field="min_p of the target's generation_config.json",
            value=default,
            allowed="none with a draft, with which vLLM refuses min_p: each request that leaves it to "
            "this default gets status 400",
            remedy="--override-generation-config '{\"min_p\": 0}', or --generation-config vllm, which "
            "leaves out all sampling of that file",
        )


@rule(Severity.ERROR, error=SpeculativeConfigError)
def prompts_have_tokens(case: Case) -> Iterable[Problem]:
    """Refuse prompts of embeddings on V1, which looks up a token after each of their chunks."""
    if case.engine.prompt_embeds and case.engine.runner == "v1":
        yield Problem(
            field="enable_prompt_embeds",
            value=True,
            allowed="false with a draft on vLLM's V1 runner, where the first such prompt ends the "
            "engine: V1 looks for its tokens to draft from",
            remedy="leave --enable-prompt-embeds out, or serve the target without a draft",
        )


@rule(Severity.WARNING, error=HybridStateError)
def one_token_prompts_stay_right(engine: EngineFacts) -> Iterable[Problem]:
    """Warn of another scheduler on a target with recurrent states: see `schedulers.py`.

    With a schedule of K vLLM pads no request. Ours may stand in a copy of an earlier start's arguments.
    """
    if engine.is_hybrid and engine.schedule is None and engine.scheduler not in (None, SCHEDULER):
        yield Problem(
            field="scheduler_cls",
            value=engine.scheduler,
            allowed="none with a draft and a target with recurrent states: vLLM's schedulers add "
            "placeholder drafts to a prompt of one token that joins running requests, and its text is "
            "wrong; this package's scheduler does not",
            remedy="leave the option out, or send no such prompts",
        )
