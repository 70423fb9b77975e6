"""`draft_vocabulary`: with the rows of some ids no text changes, and each draft that lies among them is
the whole head's.

The trained native draft reads the target's head once its own is taken away; the DFlash draft has none.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import Engine, run_engines
from tests.support.draft_vocabularies import native_without_a_head, write_ids
from tests.support.engine import TINY
from tests.support.hybrid import TARGET as HYBRID
from tests.support.hybrid import dflash
from tests.support.near_ties import assert_only_near_ties
from vllm_eagle_ext.measure.prompts import read_prompts, token_ids

pytestmark = [pytest.mark.e2e, pytest.mark.full]
TEXTS = TINY / "prompts.jsonl"
FLOAT32 = {"dtype": "float32"}  # in which texts are equal, and kernels of every CPU pack the head


def ids_of(prompts: list[list[int]], count: int, vocabulary: int) -> list[int]:
    """The most frequent tokens of texts, then the lowest."""
    counted = Counter(token for prompt in prompts for token in prompt)
    return sorted(sorted(range(vocabulary), key=lambda token: (-counted[token], token))[:count])


def engine(name: str, folder: Path, prompts: Any, ids: list[int] | None = None, **rest: Any) -> Engine:
    options, reload = rest.pop("options", {}), rest.pop("reload", False)
    if ids is not None:
        options = options | {"draft_vocabulary": write_ids(folder / f"{name}.json", ids)}
    return Engine(
        name, [], use="tests.support.whole_head", drafts=None, options=options,
        job={"prompts": prompts, "ids": ids, "reload": reload}, **{"engine_args": FLOAT32} | rest,
    )  # fmt: skip


def eagle3(folder: Path, k: int = 4, **keys: Any) -> dict[str, Any]:
    return {"method": "eagle3", "model": str(folder), "num_speculative_tokens": k, **keys}


def assert_drafts_are_the_whole_heads(answers: dict[str, Any], ranks: int = 1) -> None:
    """Packed rows that were never filled draft noise, with right texts: this is what tells."""
    assert len(answers["ranks"]) == ranks
    for counted in answers["ranks"]:
        print("\n", counted)
        assert counted["same"] == counted["inside"] > 100
        assert counted["equal_at_ids"] == counted["rows"]


@pytest.fixture(scope="module")
def v1(prompts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    draft, asked = native_without_a_head(folder / "native"), prompts[-6:]
    ids = ids_of(prompts[:80], 768, 1536)
    return run_engines(
        [
            engine("plain", folder, asked, None, speculative=eagle3(draft)),
            engine("half", folder, asked, ids, speculative=eagle3(draft)),
        ]
    )


def test_texts_and_drafts(v1):
    whole, half = v1["plain"]["answer"], v1["half"]["answer"]
    print(
        f"\naccepted a step: {whole['tau']:.3f} with the whole head, {half['tau']:.3f} with half of it"
    )
    assert half["tokens"] == whole["tokens"]
    assert 0.6 * whole["tau"] < half["tau"]
    assert_drafts_are_the_whole_heads(v1["half"])


@pytest.mark.long
class TestOthers:
    @pytest.fixture(scope="class")
    def runs(self, prompts, tmp_path_factory):
        folder = tmp_path_factory.mktemp("others")
        native = native_without_a_head(folder / "native")
        texts = [text for text, _ in read_prompts(str(TEXTS))]
        asked = token_ids(texts[-6:], str(TINY / "target")).ids
        few = ids_of(prompts[:80], 192, 1536)
        hybrid = {
            "target": HYBRID, "options": {"hybrid_state": "per_token"},
            "engine_args": {"dtype": "bfloat16"},  # vLLM's CPU kernels of gated delta nets take no other
        }  # fmt: skip
        return run_engines(
            [
                engine("whole", folder, asked, speculative=eagle3(native)),
                engine("few", folder, asked, few, speculative=eagle3(native), reload=True),
                engine("own", folder, asked, speculative=eagle3(TINY / "native")),
                engine(
                    "own, half", folder, asked, speculative=eagle3(TINY / "native"),
                    options={"draft_vocabulary": write_ids(
                        folder / "own.json", ids_of(prompts[:80], 768, 1536))},
                ),
                engine("dflash", folder, asked, speculative=dflash(7), **hybrid),
                engine(
                    "dflash, half", folder, asked, ids_of(prompts[:80], 800, 1600),
                    speculative=dflash(7), **hybrid,
                ),
                engine(
                    "bfloat16", folder, asked, few, speculative=eagle3(native),
                    engine_args={"dtype": "bfloat16"},
                ),
            ]
        )  # fmt: skip

    @pytest.mark.parametrize(("pair", "reduced"), [
        ("whole", "few"), ("own", "own, half"), ("dflash", "dflash, half"),
    ])  # fmt: skip
    def test_texts(self, runs, pair, reduced):
        whole, kept = runs[pair]["answer"], runs[reduced]["answer"]
        print(f"\n{reduced}: {kept['tau']:.3f} of {whole['tau']:.3f} accepted a step")
        if pair == "dflash":
            assert_only_near_ties(whole, kept["tokens"], reduced)
        else:
            assert kept["tokens"] == whole["tokens"]
        assert 0.5 * whole["tau"] < kept["tau"]

    def test_rows_follow_a_reload_of_the_target(self, runs):
        before, forgotten, after = (runs["few"][step] for step in ("answer", "forgotten", "reloaded"))
        assert forgotten["tau"] < before["tau"] / 4
        assert after["tau"] == before["tau"]
        assert before["tokens"] == forgotten["tokens"] == after["tokens"]

    @pytest.mark.parametrize("name", ["few", "dflash, half", "bfloat16"])
    def test_drafts(self, runs, name):
        assert_drafts_are_the_whole_heads(runs[name])


@pytest.mark.long
@pytest.mark.parametrize("keys", [{}, {"use_local_argmax_reduction": True}], ids=["logits", "local"])
def test_two_ranks(prompts, tmp_path, keys):
    draft, asked = native_without_a_head(tmp_path / "native"), prompts[-6:]
    ids = ids_of(prompts[:80], 768, 1536)
    two = {"engine_args": FLOAT32 | {"tensor_parallel_size": 2}}
    counted = None if keys else ids  # that way computes no logits
    kept = engine("kept", tmp_path, asked, ids, speculative=eagle3(draft, **keys), **two)
    kept.job["ids"] = counted
    whole = engine("whole", tmp_path, asked, speculative=eagle3(draft, **keys), **two)
    runs = run_engines([whole, kept], VLLM_CPU_OMP_THREADS_BIND="0|1")
    before, half = (runs[name]["answer"] for name in ("whole", "kept"))
    assert half["tokens"] == before["tokens"]
    assert 0.6 * before["tau"] < half["tau"]
    if counted:
        assert_drafts_are_the_whole_heads(runs["kept"], ranks=2)


@pytest.mark.long
@pytest.mark.v2
@pytest.mark.parametrize("name", ["eagle3", "dflash"])
def test_on_v2(prompts, tmp_path, name):
    """V2 shares the head in another function; Triton's interpreter is slow."""
    rest: dict[str, Any] = {"speculative": eagle3(native_without_a_head(tmp_path / "native"))}
    if name == "dflash":
        rest = {
            "speculative": dflash(7), "target": HYBRID, "options": {"hybrid_state": "replay"},
            "engine_args": {"dtype": "bfloat16"},
        }  # fmt: skip
    asked = [prompt[:24] for prompt in prompts[-2:]]
    ids = ids_of(prompts[:80], 768, 1536)
    runs = run_engines(
        [
            engine("whole", tmp_path, asked, **dict(rest)),
            engine("kept", tmp_path, asked, ids, **dict(rest)),
        ],
        "v2",
    )
    whole, kept = (runs[engine]["answer"] for engine in ("whole", "kept"))
    gaps = assert_only_near_ties(whole, kept["tokens"], name)
    assert name == "dflash" or not gaps  # in float32 there are no near-ties
    for counted in runs["kept"]["ranks"]:
        print(f"\n{counted}")
        assert counted["same"] == counted["inside"] > 20
