# SPDX-License-Identifier: Apache-2.0
"""Runs the engines of a verification, one after the other, and the checks on what they said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vllm_eagle_ext.draft.read_spec import tensor_integers
from vllm_eagle_ext.draft.vocabulary import target_ids
from vllm_eagle_ext.measure.engine.client import PROBE, EngineFailedError, EngineProcess
from vllm_eagle_ext.measure.engine.load import Load, Measured
from vllm_eagle_ext.measure.engine.machine import versions, with_memory
from vllm_eagle_ext.measure.verify import acceptance, distribution, texts
from vllm_eagle_ext.measure.verify.request import (
    PREFLIGHT,
    Check,
    VerifyReport,
    VerifyRequest,
    drafted_arguments,
    judge_preflight,
    not_applicable,
    plain_arguments,
)
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS, Scheme
from vllm_eagle_ext.start.check import CheckResult, run_check
from vllm_eagle_ext.start.serve import as_decided

GREEDY = "greedy texts"
_AT_ONCE = 64  # samples
_BEYOND = 2  # tokens sampled after those that are looked at: a request's last step is a special one

# A stage's title -> called with the number of things done, out of a total.
Stage = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]


def run_verify(request: VerifyRequest, folder: Path, stage: Stage) -> VerifyReport:
    """Run all engines and checks; the engines' logs go to `folder`.

    Raises:
        EngineFailedError: an engine without which nothing can be said.
        EagleExtError: draft, target or options cannot be read.
    """
    # The preflight, without an engine.
    checked = run_check(request.check)
    request = replace(request, engine=as_decided(request.engine, [checked]))
    preflight = judge_preflight(checked)
    if checked.exit_code:
        names = (GREEDY, distribution.NAME, acceptance.REFERENCE, texts.STATES, acceptance.WORTH)
        refused = [not_applicable(name, f"the {PREFLIGHT} refuses the draft") for name in names]
        return _report(request, checked, [preflight, *refused])
    # The engines, one after the other.
    request = fitted(request, stage)
    greedy, judged_texts, sampled, states = _run_engines(request, checked, folder, stage)
    # The target's ids that the draft can say.
    case = checked.inspection.case
    d2t = tensor_integers(case.files, "d2t") if case else None
    kind = case and case.spec.vocabulary.map_kind
    ids = target_ids(d2t, kind) if d2t and kind else (case and case.spec.kept_ids) or ()
    reference = acceptance.check_reference(request, checked, greedy, stage)
    gate = case and case.spec.gate
    worth = acceptance.judge_worth(
        greedy, request.prompts.categories, ids,
        has_layouts=bool(gate and gate.module == "q_proj"),
    )  # fmt: skip
    return _report(request, checked, [preflight, judged_texts, sampled, reference, states, worth])


def _run_engines(
    request: VerifyRequest, checked: CheckResult, folder: Path, stage: Stage
) -> tuple[Measured, Check, Check, Check]:
    """Return the draft's greedy texts, and what is judged of them, of samples and of hybrid states."""
    prompts, bound = request.prompts.ids, texts.tie_bound(request)
    load = Load(prompts, request.concurrency, request.max_tokens)
    # The draft as it would be served.
    arguments = drafted_arguments(request, checked) | {"worker_extension_cls": PROBE}
    log = folder / "with_draft.log"
    with start("the engine with the draft", arguments, log, stage) as engine:
        scheme = engine.rpc("eagle_ext_facts")[0]["state"]
        greedy = load_in(engine, load, "Texts with the draft", stage)
        ask = partial(engine.logprobs, top=distribution.BRANCHES)
        contexts = distribution.open_contexts(prompts, greedy.texts, ask)
        samples_load = _sampled(request, contexts)
        samples = load_in(engine, samples_load, "Samples with the draft", stage)
    others = _run_other_states(request, checked, load, scheme, folder, stage)
    # The target without a draft, which also says how likely the tokens are at which texts diverge.
    arguments, log = plain_arguments(request), folder / "without_draft.log"
    with start("the engine without a draft", arguments, log, stage, plugin=False) as engine:
        own = load_in(engine, load, "Texts without a draft", stage)
        diverged, diverged_states = (
            texts.with_gaps(
                texts.divergences(greedy.texts, other.texts), prompts, greedy.texts,
                partial(engine.logprobs, top=texts.TOP),
            )
            for other in (own, others if isinstance(others, Measured) else greedy)
        )  # fmt: skip
        ask = partial(engine.logprobs, top=distribution.BRANCHES)
        trees = [distribution.tree(context, ask) for context in contexts]
        control = load_in(engine, samples_load, "Samples without a draft", stage)
    sampled = distribution.judge_distribution(
        _fit(samples, trees), _fit(control, trees), samples=len(samples.answers),
        accepted=sum(samples.accepted),
    )  # fmt: skip
    if isinstance(others, Measured):
        assert scheme is not None
        others = texts.judge_states(greedy, others, diverged_states, served=scheme, bound=bound)
    return greedy, texts.judge_texts(GREEDY, diverged, greedy.texts, bound=bound), sampled, others


def _run_other_states(
    request: VerifyRequest, checked: CheckResult, load: Load, scheme: Scheme | None, folder: Path,
    stage: Stage,
) -> Measured | Check:  # fmt: skip
    """Run the engine with the other scheme of a hybrid target's states."""
    if not any(name in REPLAYING_TARGETS for name in checked.target_config.get("architectures") or ()):
        return not_applicable(texts.STATES, "the target keeps no recurrent state of a gated delta net")
    if scheme is None:
        return not_applicable(texts.STATES, "the engine keeps no recurrent states")
    other = texts.other_scheme(scheme)
    name = texts.SCHEMES[other]
    arguments = drafted_arguments(request, checked, hybrid_state=other)
    log = folder / f"{other}.log"
    try:
        with start(f"the engine with {name}", arguments, log, stage) as engine:
            return load_in(engine, load, f"Texts with {name}", stage)
    except EngineFailedError as error:
        return texts.judge_failure(error, other, log.read_text(errors="replace"))


def _fit(sampled: Measured, trees: Sequence[dict[distribution.Leaf, float]]) -> distribution.Fit:
    each, drawn = len(sampled.answers) // len(trees), sampled.texts
    slices = [drawn[at * each : (at + 1) * each] for at in range(len(trees))]
    return distribution.joint([distribution.fit(*pair) for pair in zip(slices, trees, strict=True)])


def _sampled(request: VerifyRequest, contexts: Sequence[list[int]]) -> Load:
    """Sample without a seed: one per request would make all samples alike."""
    each = request.samples // len(contexts)
    prompts = [context for context in contexts for _ in range(each)]
    length = distribution.DEPTH + _BEYOND
    return Load(prompts, _AT_ONCE, length, temperature=1.0, ignore_eos=True)


def fitted(request: VerifyRequest, stage: Stage) -> VerifyRequest:
    """Give the engine a share of the free memory, where none was given."""
    engine, share = with_memory(request.engine, [request.target, request.check.draft])
    if share is not None:
        with stage(share, None):
            pass
    return replace(request, engine=engine)


@contextmanager
def start(
    name: str, arguments: Mapping[str, Any], log: Path, stage: Stage, *, plugin: bool = True
) -> Iterator[EngineProcess]:
    """Start an engine, which is a stage; it ends with the block."""
    with ExitStack() as stack:
        with stage(f"Starting {name}", None):
            engine = stack.enter_context(EngineProcess(arguments, log, name=name, plugin=plugin))
        yield engine


def load_in(engine: EngineProcess, load: Load, title: str, stage: Stage) -> Measured:
    with stage(title, len(load.prompts)) as done:
        return engine.load(load, done)


def _report(request: VerifyRequest, checked: CheckResult, checks: Sequence[Check]) -> VerifyReport:
    prompts = request.prompts
    settings = {
        "method": checked.method, "prompts": prompts.source, "num_prompts": len(prompts.ids),
        "chat_template": prompts.chat_template, "thinking": prompts.thinking,
        "max_tokens": request.max_tokens, "concurrency": request.concurrency,
        "samples": request.samples, "tie_gap": texts.tie_bound(request), "versions": versions(),
        "engine": dict(request.engine), "eagle_ext": dict(request.options),
    }  # fmt: skip
    return VerifyReport(request.check.draft, request.target, request.k, tuple(checks), settings)
