"""Serves each tiny target without a draft and with its drafts, one engine after the other.

    python -m tests.support.targets.process JOB RESULT

JOB is {"families": [name, ..], "ranks": of an engine with a draft}.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.support.checkpoints import VOCAB
from tests.support.engine_process import capture_states, read_counters
from tests.support.families_process import drafter_name
from tests.support.hybrid_process import recorded
from tests.support.in_process import close, keep_kernels
from tests.support.near_ties import near_tie_gaps
from tests.support.replay import replay
from tests.support.targets.drafts import write_draft
from tests.support.targets.families import FAMILIES, Family, Pair
from tests.support.targets.models import as_served, write_target
from vllm_eagle_ext.measure.reference.target_states import layers_of, load_target, residual_stream
from vllm_eagle_ext.measure.reference.walk import DFlashWalk

CANDIDATES, CHOSEN = 96, 4  # prompts
PROMPT_TOKENS = 8  # more than the oracle tells texts apart by
NEW_TOKENS = 33  # one, and whole steps of 4, 8 or 16
STATES_PROMPT = list(range(1, 40))


def serve_family(family: Family, folder: Path, ranks: int) -> dict[str, Any]:
    hugging_face = write_target(family.name, folder / family.name, getattr(torch, family.dtype))
    target = as_served(family.name, hugging_face)
    started = time.perf_counter()
    # The oracle's drafts reach up to K tokens beyond the text that is asked for.
    longest = NEW_TOKENS + max(pair.k for pair in family.pairs)
    prompts = candidates()
    plain = with_engine(target, None, lambda llm: generate(llm, prompts, longest), **family.engine)
    texts = telling(prompts, plain, family.clear)
    pairs: dict[str, Any] = {}
    seconds = time.perf_counter() - started
    result = {
        "smallest_gap": texts[-1].gap,
        "distinct_tokens": [len(set(text.tokens)) for text in texts],
        "seconds": seconds,
        "pairs": pairs,
    }
    for pair in family.pairs:
        started = time.perf_counter()
        parallel = {"tensor_parallel_size": ranks} if ranks > 1 else {}
        try:
            found = serve_pair(family, pair, target, folder / pair.name, texts, **parallel)
            found |= compare_with_hugging_face(found, pair, load_target(hugging_face), texts)
        except Exception as error:  # noqa: BLE001 - the next pair must have its turn
            found = failure(error)
        pairs[pair.title] = found | {"seconds": time.perf_counter() - started}
    return result


def serve_pair(
    family: Family, pair: Pair, target: Path, folder: Path, texts: list[Text], **parallel: int
) -> dict[str, Any]:
    path, draft = write_draft(pair.kind, len(pair.layer_ids), folder)
    speculative = {
        "method": draft.method,
        "model": str(path),
        "num_speculative_tokens": pair.k,
        **pair.speculative,
    }
    found = with_engine(
        target,
        speculative,
        lambda llm: observe(llm, pair, texts),
        additional_config={"eagle_ext": {"aux_layers": list(pair.layer_ids)}},
        **family.engine,
        **({} if os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1" else pair.on_v1),
        **parallel,
    )
    return found | {"draft": str(path) if draft.method == "dflash" else None}


def compare_with_hugging_face(
    found: dict[str, Any], pair: Pair, model: Any, texts: list[Text]
) -> dict[str, Any]:
    """The states that the drafter was handed, and what a DFlash drafter made of them."""
    errors = state_errors(found.pop("states"), model, pair.layer_ids)
    path = found.pop("draft")
    if path is None:
        return errors
    walk = DFlashWalk.load(Path(path), model)
    return errors | {"reference": compare_drafts(found["own"], walk, model, pair, texts)}


def compare_drafts(
    own: dict[str, Any], reference: DFlashWalk, model: Any, pair: Pair, texts: list[Text]
) -> dict[str, Any]:
    """The drafter's own drafts against those that the reference makes of Hugging Face's states."""
    prompts = [text.prompt for text in texts]
    layer_ids, drafts = pair.layer_ids, own["recorded"]
    compared = replay(model, reference, layer_ids, prompts, own["tokens"], drafts, pair.k, chained=False)
    return {
        "drafts": compared.drafts,
        "equal": compared.equal_share,
        "compared": compared.compared,  # those of the reference's drafts that are no near-ties
    }


def with_engine(
    target: Path,
    speculative: dict[str, Any] | None,
    use: Callable[[Any], dict[str, Any]],
    **engine_args: Any,
) -> dict[str, Any]:
    from vllm import LLM

    llm = LLM(
        str(target),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=256,
        gpu_memory_utilization=0.2,
        disable_log_stats=False,
        enable_prefix_caching=False,
        seed=0,
        speculative_config=speculative,
        worker_extension_cls="tests.support.oracle_drafts.OracleDrafts",
        **engine_args,
    )
    keep_kernels()
    try:
        return use(llm)
    finally:
        close(llm)


def generate(llm: Any, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, logprobs=5
    )
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    completions = [output.outputs[0] for output in outputs]
    return {
        "tokens": [list(completion.token_ids) for completion in completions],
        "logprobs": [
            [{str(token): entry.logprob for token, entry in at.items()} for at in completion.logprobs]
            for completion in completions
        ],
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


def candidates() -> list[list[int]]:
    chance = random.Random(0)
    return [[chance.randrange(1, VOCAB) for _ in range(PROMPT_TOKENS)] for _ in range(CANDIDATES)]


def telling(prompts: list[list[int]], plain: dict[str, Any], clear: float) -> list[Text]:
    """The most varied texts of those that no rounding error turns: at every token the best is ahead of
    the second by `clear`. Where there are too few, those with the largest gaps."""
    rows = zip(prompts, plain["tokens"], plain["logprobs"], strict=True)
    texts = [Text(*row) for row in rows]
    return sorted(texts, key=lambda text: (-min(text.gap, clear), -len(set(text.tokens))))[:CHOSEN]


def observe(llm: Any, pair: Pair, texts: list[Text]) -> dict[str, Any]:
    """States, then texts with the drafter's own drafts, with right ones and with wrong ones."""
    states = capture_states(llm, STATES_PROMPT)
    found: dict[str, Any] = {"drafter": llm.collective_rpc(drafter_name)[0], "states": states}
    known = [text.prompt + text.tokens for text in texts]
    llm.collective_rpc("start_recording")
    found["own"] = count(llm, pair.k, texts) | {"recorded": recorded(llm)}
    for right in ("always", "never"):
        llm.collective_rpc("set_oracle", args=(known, right, pair.k, VOCAB))
        found[right] = count(llm, pair.k, texts)
    return found


def count(llm: Any, k: int, texts: list[Text]) -> dict[str, Any]:
    """Drafts, accepted tokens per position, and where texts part from those without a draft."""
    before = read_counters(llm)
    tokens = generate(llm, [text.prompt for text in texts], NEW_TOKENS)["tokens"]
    after = read_counters(llm)
    earlier = before["accepted_per_position"] or [0] * k
    plain = [text.tokens[:NEW_TOKENS] for text in texts]
    return {
        "tokens": tokens,
        "drafts": after["num_drafts"] - before["num_drafts"],
        "accepted": [
            now - then for now, then in zip(after["accepted_per_position"], earlier, strict=True)
        ],
        "gaps": near_tie_gaps(plain, [text.logprobs for text in texts], tokens),
    }


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


def failure(error: Exception) -> dict[str, Any]:
    return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def main() -> None:
    job, results = json.loads(Path(sys.argv[1]).read_text()), {}
    with tempfile.TemporaryDirectory() as folder:
        for name in job["families"]:
            print(f"=== {name}", flush=True)
            try:
                results[name] = serve_family(FAMILIES[name], Path(folder), job["ranks"])
            except Exception as error:  # noqa: BLE001 - the next family must have its turn
                results[name] = failure(error)
            Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
