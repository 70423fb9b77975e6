# SPDX-License-Identifier: Apache-2.0
"""What was asked of `vllm-eagle bench`, checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.bench.config_file import settle_config
from vllm_eagle_ext.measure.bench.results import (
    KINDS,
    ComparedKind,
    GivenConfig,
    Settings,
    VariantKind,
    sha256_of,
)
from vllm_eagle_ext.measure.engine.arguments import refuse_reserved, require_served
from vllm_eagle_ext.measure.prompts import BUILT_IN, PromptSet, random_ids, read_texts, token_ids
from vllm_eagle_ext.options import KEY
from vllm_eagle_ext.preflight.offline.run import CheckRequest, CheckResult, run_check
from vllm_eagle_ext.preflight.offline.serve import as_decided, speculative_config

_USUAL_PROMPTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    target: str
    drafts: Sequence[str]
    ks: Sequence[int]
    concurrency: Sequence[int]
    repeats: int = 1
    rounds: int = 3
    together: bool = False
    prompts: str | None = None
    dataset_path: str | None = None
    num_prompts: int | None = None
    prompt_tokens: int | None = None  # random ids of this length, with dummy weights
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    chat_template: bool | None = None
    thinking: bool | None = None
    method: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    speculative: Mapping[str, Any] = field(default_factory=dict)
    eagle_ext: Mapping[str, Any] = field(default_factory=dict)
    synthetic_acceptance: Sequence[float] = ()
    dummy: bool = False
    kinds: Sequence[ComparedKind] = KINDS
    config: Path | None = None  # a file, of one more variant


def settle(request: BenchRequest) -> tuple[Settings, PromptSet]:
    """Settings with nothing left open, and the token ids of the prompts.

    Raises:
        EagleExtError: a draft that would be refused, or an option with a value that cannot be used.
    """
    refuse_reserved(request.engine)
    _require_drafts(request)
    drafts = list(dict.fromkeys(request.drafts))
    checked = {draft: _checked(draft, request) for draft in drafts}
    served = {draft: speculative_config(result) for draft, result in checked.items()}
    config = _file_config(request, drafts)
    found = _prompts(request)
    limits = [result.target.max_position_embeddings for result in checked.values()]
    most = max([*request.ks, config.variant.k if config else 0], default=0)
    _require_room(request, found, most, request.engine.get("max_model_len") or next(iter(limits), None))
    same = ("target", "repeats", "rounds", "together", "max_tokens", "temperature", "seed", "dummy")
    settings = Settings(
        **{name: getattr(request, name) for name in same},
        drafts=drafts,
        method={draft: config["method"] for draft, config in served.items()},
        parallel_drafting=[draft for draft, one in served.items() if one.get("parallel_drafting")],
        ks=sorted(set(request.ks)),
        concurrency=sorted(set(request.concurrency)),
        ignore_eos=request.ignore_eos or request.dummy,
        prompts=found.source,
        num_prompts=len(found.ids),
        prompts_sha256=sha256_of(found.ids),
        prompt_tokens=[len(prompt) for prompt in found.ids],
        chat_template=found.chat_template,
        thinking=found.thinking,
        engine=as_decided(request.engine, checked.values()),
        speculative=dict(request.speculative),
        eagle_ext=dict(request.eagle_ext),
        synthetic_acceptance=_synthetic(request),
        kinds=[kind for kind in KINDS if kind in request.kinds],
        config=config,
    )
    return settings, found


def _require_drafts(request: BenchRequest) -> None:
    if not request.drafts and set(request.kinds) != {"none"}:
        raise SpeculativeConfigError(
            field="--draft", value=None, allowed="at least one, for the variants stock and ours",
            remedy="name a draft, or measure the target alone with --variants none",
        )  # fmt: skip
    if not request.eagle_ext.get("enabled", True):
        raise SpeculativeConfigError(
            field="--eagle-ext: enabled", value=False, allowed="true: ours is with this package",
            remedy="use --variants none,stock to measure vLLM without it",
        )  # fmt: skip


def _file_config(request: BenchRequest, drafts: Sequence[str]) -> GivenConfig | None:
    """The config of the file, checked.

    Raises:
        EagleExtError: it cannot be served, or was measured with what --dummy makes up.
    """
    if request.config is None:
        return None
    if request.dummy or request.synthetic_acceptance:
        raise SpeculativeConfigError(
            field="--config", value=str(request.config),
            allowed="real weights and acceptance: what a config gains follows from both",
            remedy="leave --dummy and --synthetic-acceptance out, or --config",
        )  # fmt: skip
    return settle_config(request.config, target=request.target, drafts=drafts, engine=request.engine)


def _checked(draft: str, request: BenchRequest) -> CheckResult:
    """The check that the preflight makes of each K; what is found is the largest's.

    Raises:
        UnsupportedDraftError: ours was asked for, and would refuse it.
    """
    for k in sorted(set(request.ks)):
        asked = CheckRequest.for_engine(
            request.engine, draft=draft, draft_field="--draft", target=request.target, k=k,
            method=request.method, options=request.eagle_ext, speculative=request.speculative,
        )  # fmt: skip
        result = run_check(asked)
        if "ours" in request.kinds:
            require_served(result, f"--draft {draft}, K={k}")
    return result


def _require_room(request: BenchRequest, found: PromptSet, k: int, limit: int | None) -> None:
    """Require room for the longest text, and for the drafts of its last step; past the end stock stops
    drafting for a whole batch, and a low acceptance would be the draft's fault."""
    most, seats = max(request.concurrency), request.engine.get("max_num_seqs")
    if most > len(found.ids) or (seats and most > seats):
        raise SpeculativeConfigError(
            field="--concurrency", value=most,
            allowed=f"at most the {len(found.ids)} prompts, and max_num_seqs ({seats or 'not given'})",
            remedy="give more --prompts or --num-prompts: repeated ones would be too easy to draft",
        )  # fmt: skip
    longest = max(map(len, found.ids))
    needed = longest + request.max_tokens + 2 * (k + 1)
    if limit is not None and needed > limit:
        raise SpeculativeConfigError(
            field="max_model_len", value=limit,
            allowed=f"at least {needed}: {longest} tokens of the longest prompt, --max-tokens "
            f"{request.max_tokens}, and room for drafts beyond",
            remedy="shorten the prompts or --max-tokens, or raise max_model_len in --engine",
        )  # fmt: skip


def _prompts(request: BenchRequest) -> PromptSet:
    if request.prompt_tokens is not None:
        return _random_prompts(request, request.prompt_tokens)
    texts = read_texts(
        request.prompts, count=_prompt_count(request), dataset_path=request.dataset_path,
        target=request.target, seed=request.seed,
    )  # fmt: skip
    return token_ids(
        texts, request.target, source=request.prompts, chat_template=request.chat_template,
        thinking=request.thinking, trust_remote_code=bool(request.engine.get("trust_remote_code")),
    )  # fmt: skip


def _prompt_count(request: BenchRequest) -> int | None:
    """Take all of a file or a set; of the built-in prompts enough to tell a good from a broken draft."""
    if request.prompts in (None, BUILT_IN) and request.num_prompts is None:
        return max(_USUAL_PROMPTS, *request.concurrency)
    return request.num_prompts


def _random_prompts(request: BenchRequest, length: int) -> PromptSet:
    from vllm_eagle_ext.checkpoint import read_config

    if not request.dummy:
        raise SpeculativeConfigError(
            field="--prompt-tokens", value=length, allowed="with --dummy alone",
            remedy="give --prompts: drafts of random tokens are accepted as those of no text",
        )  # fmt: skip
    config = read_config(request.target)
    vocabulary = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    if vocabulary is None:
        raise SpeculativeConfigError(
            field="vocab_size of the target", value=None,
            allowed="a number, in config.json or its text_config",
            remedy="use a target whose config.json has one",
        )  # fmt: skip
    count = request.num_prompts or 2 * max(request.concurrency)
    return random_ids(count, length, int(vocabulary), request.seed)


def _synthetic(request: BenchRequest) -> list[float] | None:
    """An acceptance length, or a rate per position of the largest K.

    Raises:
        SpeculativeConfigError: it is neither.
    """
    given, k = list(request.synthetic_acceptance), max(request.ks, default=0)
    if not given:
        return None
    _require_synthetic_kernels(given)
    rates = all(0 <= rate <= 1 for rate in given) and given == sorted(given, reverse=True)
    if (len(given) == 1 and 1 < given[0] <= k + 1) or (len(given) == k and rates):
        return given
    raise SpeculativeConfigError(
        field="--synthetic-acceptance", value=given,
        allowed=f"one acceptance length above 1 and up to {k + 1}, or {k} falling rates of 0 to 1",
        remedy="give one of them; a smaller K uses the first rates",
    )  # fmt: skip


def _require_synthetic_kernels(given: list[float]) -> None:
    from vllm import envs
    from vllm.platforms import current_platform

    if current_platform.is_cpu() and not envs.VLLM_USE_V2_MODEL_RUNNER:
        raise SpeculativeConfigError(
            field="--synthetic-acceptance", value=given, allowed="on a GPU",
            remedy="leave it out: vLLM's sampler on a CPU has no synthetic acceptance",
        )  # fmt: skip


def synthetic_keys(settings: Settings, k: int) -> dict[str, Any]:
    """Keys of speculative_config; of one length, a K takes what it can reach of it."""
    given = settings.synthetic_acceptance
    if given is None:
        return {}
    found: dict[str, Any] = {"rejection_sample_method": "synthetic"}
    if given[0] > 1:
        return found | {"synthetic_acceptance_length": min(given[0], k + 1)}
    return found | {"synthetic_acceptance_rates": given[:k]}


def engine_arguments(settings: Settings, kind: VariantKind, draft: str | None, k: int) -> dict[str, Any]:
    """Give the keywords of LLM()."""
    found: dict[str, Any] = {"seed": settings.seed, **settings.engine, "model": settings.target}
    if kind == "config" and settings.config is not None:
        found["speculative_config"] = settings.config.speculative_config
        if settings.config.additional_config:
            found["additional_config"] = settings.config.additional_config
        return found
    speculative = dict(settings.speculative)
    if settings.dummy:
        found |= {"load_format": "dummy", "skip_tokenizer_init": True}
        # A draft with dummy weights shares the target's head: vLLM asks its tensors for one.
        speculative |= {"draft_load_config": {"load_format": "auto"}}
    if draft is not None:
        found["speculative_config"] = {
            **speculative,
            "method": settings.method[draft],
            "model": draft,
            "num_speculative_tokens": k,
            **({"parallel_drafting": True} if draft in settings.parallel_drafting else {}),
            **synthetic_keys(settings, k),
        }
    if kind == "ours" and settings.eagle_ext:
        found["additional_config"] = {KEY: settings.eagle_ext}
    return found
