"""Serves each tiny target without a draft and with its drafts, and says what was seen of each pair."""

from __future__ import annotations

import random
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.support.batches import RECORDED, Batch, Engine, Oracle, start_engines
from tests.support.checkpoints import VOCAB
from tests.support.near_ties import near_tie_gaps
from tests.support.replay import replay
from tests.support.targets.drafts import write_draft
from tests.support.targets.families import FAMILIES, Family, Pair
from tests.support.targets.models import as_served, write_target
from vllm_eagle_ext.measure.reference.dflash import DFlashReference
from vllm_eagle_ext.measure.reference.published import (
    embeddings_and_head,
    layers_of,
    load_target,
    residual_stream,
)

CHOSEN = 4  # prompts, of so many by the target's dtype: in bfloat16 most texts have a near-tie
CANDIDATES = {"float32": 96, "bfloat16": 384}
PROMPT_TOKENS = 8  # more than the oracle tells texts apart by
NEW_TOKENS = 33  # one, and whole steps of 4, 8 or 16
STATES_PROMPT = list(range(1, 40))
ENGINE = {"skip_tokenizer_init": True, "max_model_len": 256, "gpu_memory_utilization": 0.2}
DRAFTS = ("own", "always", "never")  # the drafter's, right ones and wrong ones


def serve_families(names: Sequence[str], *, ranks: int = 1, runner: str = "v1") -> dict[str, Any]:
    """By family, what was seen of the target and of each of its pairs.

    Args:
        ranks: of an engine with a draft.

    Raises:
        EngineFailedError: a process ended without results.
    """
    around = {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, range(ranks)))} if ranks > 1 else {}
    with tempfile.TemporaryDirectory() as temporary:
        families = [Served(FAMILIES[name], Path(temporary, name)) for name in names]
        plain, _ = start_engines([served.plain_engine() for served in families], runner, **around)
        started = [served for served in families if "error" not in plain[served.family.name]]
        for served in started:
            served.choose_texts(plain[served.family.name]["texts"])
        pairs = [engine for served in started for engine in served.pair_engines(ranks, runner)]
        runs, _ = start_engines(pairs, runner, **around)
        return plain | {served.family.name: served.result(runs) for served in started}


class Served:
    """A family's target, written and served."""

    def __init__(self, family: Family, folder: Path) -> None:
        self.family, self.folder = family, folder
        folder.mkdir()
        self.hugging_face = write_target(family.name, folder / "target", getattr(torch, family.dtype))
        self.target = as_served(family.name, self.hugging_face)
        self.speculative: dict[str, dict[str, Any]] = {}

    def plain_engine(self) -> Engine:
        # The oracle's drafts reach up to K tokens beyond the text that is asked for.
        longest = NEW_TOKENS + max(pair.k for pair in self.family.pairs)
        texts = Batch("texts", candidates(self.family.dtype), max_tokens=longest, logprobs=5)
        return Engine(
            self.family.name, [texts], engine_args=ENGINE | self.family.engine, target=self.target
        )

    def choose_texts(self, plain: dict[str, Any]) -> None:
        self.texts = telling(plain, self.family.clear)

    def pair_engines(self, ranks: int, runner: str) -> list[Engine]:
        return [self._pair_engine(pair, ranks, runner) for pair in self.family.pairs]

    def _pair_engine(self, pair: Pair, ranks: int, runner: str) -> Engine:
        path, draft = write_draft(pair.kind, len(pair.layer_ids), self.folder / pair.name)
        speculative = self.speculative[pair.title] = {
            "method": draft.method,
            "model": str(path),
            "num_speculative_tokens": pair.k,
            **pair.speculative,
        }
        parallel = {"tensor_parallel_size": ranks} if ranks > 1 else {}
        return Engine(
            self._name(pair),
            pair_batches(self.texts),
            speculative,
            ENGINE | self.family.engine | (pair.on_v1 if runner == "v1" else {}) | parallel,
            {"aux_layers": list(pair.layer_ids)},
            self.target,
            drafts=RECORDED,
        )

    def _name(self, pair: Pair) -> str:
        return f"{self.family.name}: {pair.title}"

    def result(self, runs: dict[str, Any]) -> dict[str, Any]:
        return {
            "smallest_gap": self.texts[-1].gap,
            "distinct_tokens": [len(set(text.tokens)) for text in self.texts],
            "pairs": {
                pair.title: self._pair_result(pair, runs[self._name(pair)]) for pair in self.family.pairs
            },
        }

    def _pair_result(self, pair: Pair, runs: dict[str, Any]) -> dict[str, Any]:
        if "error" in runs:
            return runs
        try:
            model, speculative = load_target(self.hugging_face), self.speculative[pair.title]
            compared = compare_with_hugging_face(runs, pair, speculative, model, self.texts)
        except Exception as error:  # noqa: BLE001 - the next pair must have its turn
            return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        drafter = runs["own"]["workers"][0]["drafter"]
        counts = {name: counted(runs[name], self.texts) for name in DRAFTS}
        return {"drafter": drafter, **counts, **compared}


def pair_batches(texts: list[Text]) -> list[Batch]:
    """States, then texts with each kind of drafts."""
    prompts, known = [text.prompt for text in texts], [text.prompt + text.tokens for text in texts]
    oracles = {name: Oracle(known, name, VOCAB) for name in DRAFTS[1:]}
    return [
        Batch("states", [STATES_PROMPT], max_tokens=1, states=True),
        *(Batch(name, prompts, max_tokens=NEW_TOKENS, oracle=oracles.get(name)) for name in DRAFTS),
    ]


def counted(result: dict[str, Any], texts: list[Text]) -> dict[str, Any]:
    """Drafts, accepted tokens per position, and where texts part from those without a draft."""
    plain = [text.tokens[:NEW_TOKENS] for text in texts]
    return {
        "drafts": result["counters"]["spec_decode_num_drafts"],
        "accepted": result["counters"]["spec_decode_num_accepted_tokens_per_pos"],
        "gaps": near_tie_gaps(plain, [text.logprobs for text in texts], result["tokens"]),
    }


def compare_with_hugging_face(
    runs: dict[str, Any], pair: Pair, speculative: dict[str, Any], model: Any, texts: list[Text]
) -> dict[str, Any]:
    """The states that the drafter was handed, and what a DFlash drafter made of them."""
    errors = state_errors(runs["states"]["states"], model, pair.layer_ids)
    if speculative["method"] != "dflash":
        return errors
    walk = DFlashReference.load(Path(speculative["model"]), *embeddings_and_head(model))
    return errors | {"reference": compare_drafts(runs["own"], walk, model, pair, texts)}


def compare_drafts(
    own: dict[str, Any], reference: DFlashReference, model: Any, pair: Pair, texts: list[Text]
) -> dict[str, Any]:
    """The drafter's own drafts against those that the reference makes of Hugging Face's states."""
    prompts = [text.prompt for text in texts]
    layer_ids, drafts = pair.layer_ids, own["drafts"]
    compared = replay(model, reference, layer_ids, prompts, own["tokens"], drafts, pair.k, chained=False)
    return {
        "drafts": compared.drafts,
        "equal": compared.equal_share,
        "compared": compared.compared,  # those of the reference's drafts that are no near-ties
    }


@dataclass(frozen=True)
class Text:
    prompt: list[int]
    tokens: list[int]  # without a draft, some more than are asked for
    logprobs: list[dict[str, float]]

    @property
    def gap(self) -> float:
        """Between the best and the second token, where they are closest."""
        ranked = (sorted(at.values(), reverse=True) for at in self.logprobs)
        return min(at[0] - at[1] for at in ranked)


def candidates(dtype: str = "float32") -> list[list[int]]:
    chance, count = random.Random(0), CANDIDATES[dtype]
    return [[chance.randrange(1, VOCAB) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def telling(plain: dict[str, Any], clear: float) -> list[Text]:
    """The most varied texts of those that no rounding error turns: at every token the best is ahead of
    the second by `clear`. Where there are too few, those with the largest gaps."""
    rows = zip(plain["prompts"], plain["tokens"], plain["logprobs"], strict=True)
    texts = [Text(*row) for row in rows]
    return sorted(texts, key=lambda text: (-min(text.gap, clear), -len(set(text.tokens))))[:CHOSEN]


def state_errors(states: list[list[float]], model: Any, layer_ids: tuple[int, ...]) -> dict[str, Any]:
    """Per aux layer, the error of all rows against Hugging Face in fp32, relative to their norm, where
    a single wrong row counts 0.16; and how far the nearest other layer is by the same measure."""
    captured = torch.tensor(states).chunk(len(layer_ids), dim=-1)
    stream = residual_stream(model, STATES_PROMPT, range(len(layers_of(model)) + 1))
    steps = [relative(a, b) for a, b in zip(stream, stream[1:], strict=False)]
    errors = {str(b): relative(mine, stream[b]) for b, mine in zip(layer_ids, captured, strict=True)}
    return {"state_errors": errors, "nearest_other_layer": min(steps)}


def relative(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((mine - theirs).norm() / theirs.norm())
