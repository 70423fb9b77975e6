# SPDX-License-Identifier: Apache-2.0
"""Rules about what runs next to drafts, and what the speculative config makes of texts and lengths."""

from __future__ import annotations

from typing import Any

from vllm_eagle_ext.draft import Case
from vllm_eagle_ext.draft.findings import Problem, Problems, Severity, rule
from vllm_eagle_ext.errors import HybridStateError, SpeculativeConfigError
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
from vllm_eagle_ext.start.rules.vllm_config import architecture_of, runner_of, schedule_of

_SAMPLING, _LOSSY = "rejection_sample_method", ("fly", "synthetic")  # "fly": since 0.33
SCHEDULER = "vllm_eagle_ext.start.schedulers.build_scheduler"  # which vLLM resolves and calls


@rule(Severity.WARNING)
def texts_stay_the_targets(case: Case, config: Any) -> Problems:
    """`rejection_sample_method` leaves texts as they are without a draft."""
    method = config.speculative_config.rejection_sample_method
    if method in _LOSSY:
        yield Problem(
            field=f"speculative_config.{_SAMPLING}",
            value=method,
            allowed='"standard" or "block" for the texts of the target: this one accepts drafts that '
            "the target would reject, and texts differ from those without a draft",
            remedy="leave the key out, unless other texts are what you want",
        )


@rule(Severity.WARNING)
def one_length_stops_no_drafts(case: Case, config: Any) -> Problems:
    """On V1 the draft's `max_model_len` is the engine's."""
    key = "max_model_len"
    length = config.speculative_config.max_model_len
    if length is None or runner_of(config) == "v2" or case.spec.draft_window is not None:
        return
    if length < config.model_config.max_model_len:
        yield Problem(
            field=f"speculative_config.{key}",
            value=length,
            allowed="none, or the engine's: while one request is longer, vLLM's V1 runner drafts for no "
            "request at all",
            remedy="leave the key out: a draft costs no more in long texts; draft_window bounds what it "
            "reads",
        )


@rule(Severity.WARNING)
def adapters_meet_their_rows(case: Case, config: Any) -> Problems:
    """On V2 no adapter changes `lm_head`."""
    adapters = config.lora_config  # vLLM asks `target_modules`, if given, by name
    on_head = adapters and (adapters.target_modules is None or "lm_head" in adapters.target_modules)
    if on_head and runner_of(config) == "v2":
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
def default_requests_are_served(case: Case, config: Any) -> Problems:
    """The target's default sampling has no `min_p`. vLLM refuses it with drafts."""
    default = config.model_config.get_diff_sampling_param().get("min_p")
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
def prompts_have_tokens(case: Case, config: Any) -> Problems:
    """On V1 prompts are no embeddings."""
    if config.model_config.enable_prompt_embeds and runner_of(config) == "v1":
        yield Problem(
            field="enable_prompt_embeds",
            value=True,
            allowed="false with a draft on vLLM's V1 runner, where the first such prompt ends the "
            "engine: V1 looks for its tokens to draft from",
            remedy="leave --enable-prompt-embeds out, or serve the target without a draft",
        )


@rule(Severity.WARNING, error=HybridStateError)
def one_token_prompts_stay_right(config: Any, case: Case | None = None) -> Problems:
    """With recurrent states the scheduler is this package's, or K has a schedule.

    `start/schedulers.py` says why. Ours may stand in a copy of an earlier start's arguments.
    """
    scheduler = config.scheduler_config.scheduler_cls
    is_judged = case is not None or architecture_of(config) in REPLAYING_TARGETS
    if not is_judged or not config.model_config.is_hybrid or config.speculative_config is None:
        return
    if schedule_of(config) is None and scheduler not in (None, SCHEDULER):
        yield Problem(
            field="scheduler_cls",
            value=scheduler,
            allowed="none with a draft and a target with recurrent states: vLLM's schedulers add "
            "placeholder drafts to a prompt of one token that joins running requests, and its text is "
            "wrong; this package's scheduler does not",
            remedy="leave the option out, or send no such prompts",
        )
