# SPDX-License-Identifier: Apache-2.0
"""How often drafted tokens are accepted: worth it at all, and as often as the reference's are.

The reference drafts after the same tokens of the engine's own greedy texts, so that contexts
cannot diverge.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from vllm_eagle_ext.draft.sources import (
    find_modelscopes_snapshot,
    open_source,
    takes_modelscopes_names,
)
from vllm_eagle_ext.measure.engine.load import Answer, Measured, spread_of
from vllm_eagle_ext.measure.verify.request import (
    OVERRIDES,
    Check,
    Verdict,
    VerifyRequest,
    not_applicable,
)
from vllm_eagle_ext.memory.footprint import GIB
from vllm_eagle_ext.start.check import CheckResult, run_check

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from vllm_eagle_ext.draft import DraftSpec
    from vllm_eagle_ext.measure.reference.eagle3 import Reference

WORTH, REFERENCE = "acceptance", "reference"
LEAST_RATE = 0.2  # of the first position; drafts that fit the target reach twice that and more
LEAST_LENGTH = 1.5  # of K >= 2; drafts that are read rightly reach it
LEAST_DRAFTS = 30
MOST_DRAFTS = 800  # that the reference makes
BOUND, CERTAIN = 0.03, 4.0  # the second in standard errors
# Of the reference's first choice, by which the second is worse: two steps of bf16.
CLEAR = 2**-7
UNLIKE = 0.02  # share of the steps that may diverge where the choice is clear; of tiny pairs: 0 to 0.01
_CHANCE = 0.025  # of the first position: less than the commonest token of any language
_SURE = 0.99  # one-sided, of the first position's rate
_OF_IDS = 2.5  # as CERTAIN, of different ids: a text may repeat one of them
_MOST_COLUMNS, _NAME = 12, 20  # of a line; the figures have all
_UNDRAFTED_TOKENS = 2  # the prompt's step makes one, the next need not draft for a last one
_UNDRAFTED = 0.02  # share of the steps that may have gone without drafts

LARGEST_GIB = 8  # of the target's files: in float32 they take twice that
# Keywords of LLM() by which an engine reads or computes another target than plain transformers.
_OTHER_TARGET = (
    "code_revision", "hf_overrides", "hf_config_path", "config_format", "load_format",
    "quantization", "quantization_config", "kv_cache_dtype", "trust_remote_code", "model_impl",
)  # fmt: skip
_DEFAULTS: tuple[object, ...] = (None, False, "", {}, "auto", "safetensors")
_NOT_OF_TEXT = {"image_token_index"}  # keys of hf_overrides: how vLLM's V1 runner finds images

GATE = "Likeliest cause: the other layout of the gate. `vllm-eagle verify --gate-layouts` measures both."
LIKELY = (
    "Likely causes: another target than the draft was trained for, or another revision of it;",
    "prompts without the chat template or thinking switch of its training (--[no-]chat-template,",
    "--[no-]thinking);",
    'aux layers of another convention (--eagle-ext \'{"aux_layers": "input"}\', see docs/drafts.md).',
)
NOT_DRAFTING = (
    "Likely causes: prompts beyond the draft's own max_model_len, where vLLM goes on without drafts;",
    "or arguments in --engine that turn drafting off; the log says what the engine was started with.",
)


@dataclass
class Paired:
    """The same steps, drafted by the engine and by the reference: accepted drafts per position."""

    k: int
    steps: list[tuple[int, int]] = field(default_factory=list)  # drafts that each had accepted
    clear: int = 0  # steps that diverge where the reference is certain of its draft

    def add(self, engine: int, reference: int, *, clear: bool = False) -> None:
        """Add a step, by the number of drafts that each had accepted."""
        self.steps.append((engine, reference))
        self.clear += clear and engine != reference

    @property
    def drafts(self) -> int:
        return len(self.steps)

    @property
    def engine(self) -> list[float]:
        return [fmean(engine > at for engine, _ in self.steps) for at in range(self.k)]

    @property
    def reference(self) -> list[float]:
        return [fmean(reference > at for _, reference in self.steps) for at in range(self.k)]

    @property
    def _unlike(self) -> list[list[int]]:
        """List 1 for each step whose draft at a position only the engine accepts, and -1."""
        return [[(e > at) - (r > at) for e, r in self.steps] for at in range(self.k)]

    @property
    def differences(self) -> list[float]:
        return [fmean(each) for each in self._unlike]

    @property
    def bounds(self) -> list[float]:
        """Return the bound per position; the standard error is that of a mean of paired differences."""
        return [max(BOUND, CERTAIN * pstdev(each) / sqrt(self.drafts)) for each in self._unlike]

    def to_json(self) -> dict[str, Any]:
        return {
            "drafts": self.drafts, "clear_divergences": self.clear, "engine": self.engine,
            "reference": self.reference, "bounds": self.bounds,
        }  # fmt: skip


def is_enough(rates: Sequence[float]) -> bool:
    """Return whether rates per position are those of a draft that is read rightly."""
    return rates[0] >= LEAST_RATE and (1 + sum(rates) >= LEAST_LENGTH or len(rates) == 1)


def judge_worth(
    measured: Measured, categories: Sequence[str | None] = (), ids: Collection[int] = (), *,
    has_layouts: bool = False,
) -> Check:  # fmt: skip
    """Judge whether drafting is worth it, and tell acceptance per request and by category of prompt.
    The draft can say these `ids` of the target, or all; its gate may have another layout."""
    long = sum(len(answer.tokens) > _UNDRAFTED_TOKENS for answer in measured.answers)
    if not measured.drafts and long:
        said = f"Nothing was drafted for {long} texts of more than {_UNDRAFTED_TOKENS} tokens."
        return Check(WORTH, Verdict.FAILED, said, NOT_DRAFTING, {"drafts": 0})
    if measured.drafts < LEAST_DRAFTS:
        reason = f"{measured.drafts} drafts are too few; use more prompts or a larger --max-tokens"
        return not_applicable(WORTH, reason)
    # Whether it is worth it, by how often tokens are accepted, by chance, and by the vocabulary's map.
    rates = [count / measured.drafts for count in measured.accepted]
    length = 1 + sum(rates)
    enough = is_enough(rates)
    said = (
        f"{length:.2f} tokens per step; accepted per position {_row(rates)} of {measured.drafts} drafts."
    )
    counted = Counter(token for answer in measured.answers for token in answer.tokens)
    below = () if enough else _below_chance(measured, counted)
    mapped, off = _judge_map(counted, ids)
    verdict = Verdict.FAILED if below else Verdict.PASSED if enough and not off else Verdict.WARNING
    # Per request and by category of prompt.
    spread = spread_of(measured.histograms, len(rates), categories)
    figures = {
        "drafts": measured.drafts, "rates": rates, "acceptance_length": length,
        "least_rate": LEAST_RATE, "least_length": LEAST_LENGTH, **spread,
    }  # fmt: skip
    rows = {title: [f"{n[:_NAME]} {v:.3g}" for n, v in row.items()] for title, row in spread.items()}
    lines = [
        f"{t.replace('_', ' ')}: {', '.join(row[:_MOST_COLUMNS])}" for t, row in rows.items() if row
    ]
    likely = () if enough or off else (GATE, *LIKELY) if has_layouts and not below else LIKELY
    return Check(WORTH, verdict, said, (*lines, *mapped, *below, *likely), figures)


def _below_chance(measured: Measured, counted: Counter[int]) -> tuple[str, ...]:
    """Tell of a first position that is right less often than the commonest token would be."""
    import torch

    if counted.total() < LEAST_DRAFTS:
        return ()
    accepted = measured.accepted[0]
    chance = max(counted.most_common(1)[0][1] / counted.total(), _CHANCE)
    right = torch.distributions.Binomial(measured.drafts, torch.tensor(chance, dtype=torch.float64))
    as_few = float(right.log_prob(torch.arange(accepted + 1, dtype=torch.float64)).exp().sum())
    if as_few >= 1 - _SURE:
        return ()
    return (f"Below chance: {accepted} first tokens are right; by chance {chance:.3f} of them are.",)


def _judge_map(counted: Counter[int], ids: Collection[int]) -> tuple[list[str], bool]:
    """Tell what the vocabulary map can say of the texts, and whether its neighbours could say more."""
    if not ids or not counted:
        return [], False
    kept = set(ids)
    by_shift = {shift: {id_ + shift for id_ in kept} for shift in (-1, 1)}
    said = [f"the draft's map has {sum(counted[i] for i in kept) / counted.total():.1%} of the tokens"]
    for shift, others in by_shift.items():
        gained, lost = (
            [counted[i] for i in ids & counted.keys()] for ids in (others - kept, kept - others)
        )
        share = sum(counted[i] for i in others) / counted.total()
        is_likely = len(gained) - len(lost) > _OF_IDS * sqrt(len(gained) + len(lost))
        if is_likely and sum(gained) - sum(lost) > CERTAIN * sqrt(sum(gained) + sum(lost)):
            said.append(
                f"with each target id {shift:+} it would have {share:.1%}: the map is off by one. "
                f"Add {shift} to its target ids (d2t, and t2d likewise), keep lm_head"
            )
    return said, len(said) > 1


def drafted_steps(prompt: Sequence[int], answer: Answer, k: int) -> Iterator[tuple[int, int]]:
    """Yield first row and accepted drafts of each step that could have shown K + 1 tokens of the text.

    A last step may be cut short: its K tokens may be K accepted drafts, or K - 1 and the target's own.
    """
    start, end = len(prompt) - 1, len(prompt) + len(answer.tokens)
    for tokens in answer.steps[1:]:  # the first is the prompt's own
        if start + 2 + k >= end:
            return
        yield start, tokens - 1
        start += tokens


def compare(
    reference: Reference,
    target: PreTrainedModel,
    layer_ids: Sequence[int],
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Answer],
    k: int,
) -> Paired:
    import torch

    from vllm_eagle_ext.measure.reference.published import accepted_length, residual_stream

    paired = Paired(k)
    for prompt, answer in zip(prompts, answers, strict=True):
        if paired.drafts >= MOST_DRAFTS:
            break
        tokens = [*prompt, *answer.tokens]
        with torch.inference_mode():
            rows = reference.true_rows(tokens, residual_stream(target, tokens, layer_ids))
            for start, accepted in drafted_steps(prompt, answer, k):
                wanted = tokens[start + 2 : start + 2 + k]
                own = reference.draft(start, k, rows)
                kept = accepted_length(own.tokens, wanted)
                # Up to the shorter of both they drafted the same tokens, and there they diverge.
                at = min(accepted, kept, k - 1)
                clear = own.margins[at] >= CLEAR * abs(own.logits[at])
                paired.add(accepted, kept, clear=clear)
    return paired


def undrafted(measured: Measured) -> str | None:
    """Say why the tokens do not tell the engine's steps apart; None: each but a prompt's drafted."""
    steps = sum(len(answer.steps) - 1 for answer in measured.answers)
    if steps - measured.drafts > _UNDRAFTED * steps:
        return f"{steps} steps followed the prompts' own, and {measured.drafts} of them verified drafts"
    return None


def judge_reference(paired: Paired, overrides: Sequence[str] = ()) -> Check:
    """Compare the engine's acceptance with the reference's.

    Args:
        overrides: options that read the checkpoint otherwise than the reference, which may therefore be
            the worse of both: an engine that accepts more with them is no failure.
    """
    if paired.drafts < LEAST_DRAFTS:
        reason = f"{paired.drafts} drafts are too few; use more prompts or a larger --max-tokens"
        return not_applicable(REFERENCE, reason)
    pairs = enumerate(zip(paired.differences, paired.bounds, strict=True), start=1)
    beyond = {position: value for position, (value, bound) in pairs if abs(value) > bound}
    largest = max(paired.differences, key=abs)
    said = f"{paired.drafts} drafts, largest difference of acceptance {largest:+.3f}"
    said += f", beyond its bound at position {', '.join(map(str, beyond))}" if beyond else ""
    said += f"; {paired.clear} diverge where the reference's choice is clear."
    details = [f"engine    {_row(paired.engine)}", f"reference {_row(paired.reference)}"]
    if beyond:
        details.append(f"allowed   {_row(paired.bounds)}")
    # The most steps that may diverge clearly, with what chance adds to their share.
    most_clear = UNLIKE * paired.drafts + CERTAIN * sqrt(UNLIKE * (1 - UNLIKE) * paired.drafts)
    unlike = paired.clear > most_clear
    if unlike:
        details.append("The engine drafts other tokens: aux layers or norms may be read otherwise.")
    if (beyond or unlike) and overrides:
        details.append(f"The reference reads the checkpoint without {', '.join(overrides)}.")
        if largest > 0:
            details.append("The engine accepts more: the options may be right, and the file wrong.")
    # A difference is positive where the engine accepts more.
    if any(difference < 0 or not overrides for difference in beyond.values()):
        verdict = Verdict.FAILED
    else:
        verdict = Verdict.WARNING if beyond or unlike else Verdict.PASSED
    return Check(REFERENCE, verdict, said, tuple(details), paired.to_json())


def _row(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)


def check_reference(
    request: VerifyRequest,
    checked: CheckResult,
    greedy: Measured,
    stage: Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]],
) -> Check:
    try:
        kept = {name: value for name, value in request.options.items() if name not in OVERRIDES}
        spec = run_check(replace(request.check, options=kept)).inspection.spec
        reason = _unsupported_reason(request, spec) or undrafted(greedy)
        if reason or spec is None:
            return not_applicable(REFERENCE, reason or "the draft is passed through to vLLM")
        with stage("Drafting with the reference", None):
            return _compare(request, spec, greedy)
    except Exception as error:  # noqa: BLE001 (what the engines found must not be lost with it)
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return not_applicable(REFERENCE, f"the reference cannot be computed ({said})")


def _unsupported_reason(request: VerifyRequest, spec: DraftSpec | None) -> str | None:
    if request.reference is False:
        return "left out by --no-reference"
    if spec is None:
        return "the draft is passed through to vLLM, or not what it says without the options"
    values = {name: request.engine.get(name) for name in _OTHER_TARGET}
    if isinstance(values["hf_overrides"], Mapping) and _NOT_OF_TEXT.issuperset(values["hf_overrides"]):
        del values["hf_overrides"]
    if other := [name for name, value in values.items() if value not in _DEFAULTS]:
        return f"the reference reads the target without {', '.join(other)} of --engine"
    target = open_source(
        request.target, revision=request.check.target_revision, token=None,
        download_dir=request.check.download_dir, field="--target",
    )  # fmt: skip
    size = weight_file_bytes(target.files()) / GIB
    if request.reference is None and size > LARGEST_GIB:
        return (
            f"the target's weights are {size:.1f} GiB, and more than {LARGEST_GIB} take long in "
            "float32; ask for it with --reference"
        )
    from vllm_eagle_ext.measure.reference.published import unsupported_reason

    check = request.check
    return unsupported_reason(spec, _local(check.draft, check.revision, check.download_dir))


def weight_file_bytes(files: Mapping[str, int]) -> int:
    """Sum the bytes of those weight files, by name, that transformers reads."""
    own = {name: size for name, size in files.items() if "consolidated" not in name}
    ends = (".safetensors", ".bin")
    tensors, pickled = (sum(size for name, size in own.items() if name.endswith(e)) for e in ends)
    return tensors or pickled


def _compare(request: VerifyRequest, spec: DraftSpec, greedy: Measured) -> Check:
    from transformers.utils import logging

    from vllm_eagle_ext.measure.reference.published import NotComputedError, load_reference, load_target

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    check = request.check
    target = load_target(_local(request.target, check.target_revision, check.download_dir))
    try:
        folder = _local(check.draft, check.revision, check.download_dir)
        reference = load_reference(spec, folder, target)
    except NotComputedError as error:
        return not_applicable(REFERENCE, str(error))
    layer_ids = spec.aux_layers.layer_ids
    prompts, answers = request.prompts.ids, greedy.answers
    paired = compare(reference, target, layer_ids, prompts, answers, request.k)
    return judge_reference(paired, request.overrides())


def _local(model: str, revision: str | None, download_dir: str | None) -> Path:
    """Find a model's folder; in the hub's cache, where an engine has just read it."""
    folder = Path(os.path.expanduser(model))
    if folder.is_dir():
        return folder
    if takes_modelscopes_names():
        return find_modelscopes_snapshot(model, revision, download_dir)
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(model, revision=revision, cache_dir=download_dir, local_files_only=True)
    )
