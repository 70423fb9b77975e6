# SPDX-License-Identifier: Apache-2.0
"""Rules about recurrent states: whether an engine can keep them as asked, with drafts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from vllm_eagle_ext.checkpoint.findings import Problem, Severity, rule
from vllm_eagle_ext.engine import EngineFacts
from vllm_eagle_ext.errors import HybridStateError, OptionsError
from vllm_eagle_ext.memory import state_scheme
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
from vllm_eagle_ext.memory.state_scheme import OPTION, Choice, choose

_SCHEDULE = "speculative_config.num_speculative_tokens_per_batch_size"
_ADAPTIVE_OPTION = "additional_config.eagle_ext.adaptive_verification"
_ADAPTIVE_KEY = "enable_adaptive_verification"
_KERNELS_OPTION = "additional_config.eagle_ext.replay_kernels"
_LEAVE = "leave the option out. It is ignored"
_OFFLOADING = "OffloadingConnector"


@rule(Severity.ERROR, error=HybridStateError)
def replay_needs_states(engine: EngineFacts) -> Iterable[Problem]:
    """Refuse replay for a target without recurrent states."""
    if engine.options.hybrid_state == "replay" and engine.architecture not in REPLAYING_TARGETS:
        yield Problem(
            field=OPTION,
            value="replay",
            allowed=f"'auto' or 'per_token' for {engine.architecture}; 'replay' for "
            + ", ".join(REPLAYING_TARGETS),
            remedy="leave the option out",
        )


@rule(Severity.WARNING, error=OptionsError)
def adaptive_option_is_used(engine: EngineFacts) -> Iterable[Problem]:
    """Warn where the option `adaptive_verification`, which permits vLLM's key, does nothing."""
    if not engine.options.adaptive_verification:
        return
    if engine.architecture not in REPLAYING_TARGETS:
        yield Problem(
            field=_ADAPTIVE_OPTION,
            value=True,
            allowed=f"false for {engine.architecture}, where vLLM's {_ADAPTIVE_KEY} needs no option of "
            "this package; true for " + ", ".join(REPLAYING_TARGETS),
            remedy=_LEAVE,
        )
    elif not engine.adaptive_verification:
        yield Problem(
            field=_ADAPTIVE_OPTION,
            value=True,
            allowed=f"true with vLLM's {_ADAPTIVE_KEY}, which it permits on this target and does not "
            "turn on",
            remedy=f'add {{"{_ADAPTIVE_KEY}": true}} to the speculative config, or {_LEAVE}',
        )


@rule(Severity.WARNING, error=HybridStateError)
def states_are_saved_in_time(engine: EngineFacts) -> Iterable[Problem]:
    """Warn of offloading where vLLM clears blocks of states before it saves them."""
    named = re.findall(r"\w+", engine.kv_connector or "")
    if engine.architecture in REPLAYING_TARGETS and engine.runner == "v2" and _OFFLOADING in named:
        yield Problem(
            field="KV connector",
            value=engine.kv_connector,
            allowed="no offloading of a target with recurrent states on vLLM's V2 runner. The runner "
            "clears a block that was handed on before its bytes are saved to the host. Where the cache "
            "is full, prefixes come back as zeros or as another request's. Texts are then wrong, also "
            "without a draft",
            remedy="serve without offloading",
        )


@rule(Severity.WARNING, error=HybridStateError)
def short_rows_are_served(engine: EngineFacts) -> Iterable[Problem]:
    """Warn of one state block per draft token on a CPU whose kernels misplace steps of few drafts."""
    is_ours = engine.architecture in REPLAYING_TARGETS and not engine.vllm_replays
    if not (is_ours and engine.short_drafts_crash) or (choice := choose(engine)).replays:
        return
    remedies = [problem.remedy for problem in state_scheme.unsupported_by_replay(engine)]
    if engine.options.hybrid_state != "auto":
        remedies.insert(0, "leave the option out")
    yield Problem(
        field=OPTION,
        value=engine.options.hybrid_state,
        allowed=f"replay for {engine.architecture} on a CPU with vLLM 0.32, whose kernels misplace "
        "steps of fewer than K drafts: with structured output, at the end of max_model_len or a token "
        "budget the engine ends, or texts are wrong. One state block per draft token was chosen "
        f"because: {choice.reason}",
        remedy="; ".join(remedies),
    )


@rule(Severity.ERROR, error=HybridStateError)
def state_can_be_kept(engine: EngineFacts) -> Iterable[Problem]:
    """Refuse what crashes vLLM, replay that cannot be had, and what the chosen scheme cannot serve."""
    if engine.architecture in REPLAYING_TARGETS:
        first = next(_state_problems(engine), None)
        yield from () if first is None else (first,)


def _state_problems(engine: EngineFacts) -> Iterator[Problem]:
    if engine.runner == "v1" and engine.prefix_caching and not engine.has_triton:
        yield Problem(
            field="enable_prefix_caching",
            value=True,
            allowed=f"false for {engine.architecture} with drafts on vLLM's V1 runner without Triton, "
            "which crashes otherwise (run_fused_precopy has no CPU kernel)",
            remedy="--no-enable-prefix-caching, or LLM(enable_prefix_caching=False)",
        )
    if engine.options.hybrid_state == "replay" and (
        found := list(state_scheme.unsupported_by_replay(engine))
    ):
        first, *others = found
        also = [f"also: {other.field} is {other.value!r}. Allowed: {other.allowed}" for other in others]
        yield Problem(
            field=first.field,
            value=first.value,
            allowed=f"{first.allowed}, with {OPTION} 'replay'",
            remedy="; ".join([f"{first.remedy}; or hybrid_state 'auto' or 'per_token'", *also]),
        )
    if engine.vllm_replays:
        return
    choice = choose(engine)
    yield from _uneven_drafts(engine, choice)
    if choice.replays and engine.on_cpu and engine.options.replay_kernels == "chunked":
        yield Problem(
            field=_KERNELS_OPTION,
            value="chunked",
            allowed="'auto' or 'sequential' on a CPU, where replay runs vLLM's C++ kernel",
            remedy="leave the option out",
        )


def _uneven_drafts(engine: EngineFacts, choice: Choice) -> Iterator[Problem]:
    """Refuse steps of fewer than K drafts where the scheme that was chosen cannot serve them.

    A schedule of K with one state block per draft token crashes vLLM's CPU kernels or gives wrong texts.
    Drafts that are trimmed on the device need replay and the option.
    """
    target = engine.architecture
    if engine.per_token_crashes and not choice.replays:
        yield Problem(
            field=_SCHEDULE,
            value=engine.schedule,
            allowed=f"a fixed K for {target} with one state block per draft token on a CPU, "
            "where this vLLM crashes or gives wrong texts in steps of fewer drafts (0.33 does not); the "
            f"scheme was chosen because: {choice.reason}",
            remedy="leave the key out, or keep the states by replay: hybrid_state 'auto' or 'replay'",
        )
    if engine.per_token_misreads and not choice.replays:
        yield Problem(
            field="enable_lora",
            value=True,
            allowed=f"false for {target} with drafts and one state block per draft token on a "
            "CPU that packs weights of convolutions, which vLLM's kernels then take for plain ones, and "
            f"texts are wrong; the scheme was chosen because: {choice.reason}",
            remedy="keep the states by replay, hybrid_state 'auto' or 'replay'; or serve no adapters",
        )
    if engine.adaptive_verification and not (choice.replays and engine.options.adaptive_verification):
        yield Problem(
            field="speculative_config.enable_adaptive_verification",
            value=True,
            allowed=f"false for {target}; true with states kept by replay and "
            f"{_ADAPTIVE_OPTION} true, untested on GPUs. Chosen here: {choice.scheme}, {choice.reason}",
            remedy='leave the key out, or ask for both: {"eagle_ext": {"hybrid_state": "replay", '
            '"adaptive_verification": true}}',
        )
