"""Two ranks draft what one does: gates stay with their heads, whatever the layout and the KV heads."""

from __future__ import annotations

import pytest
import torch

from tests.support.batches import RECORDED, Batch, Engine, run_engines
from tests.support.checkpoints import HEAD_DIM, HEADS, HIDDEN
from tests.support.drafts import Draft, valid_draft, write
from tests.support.random_targets import MAX_TOKENS, PROMPTS, RANDOM_ENGINE, write_random_target

pytestmark = [pytest.mark.e2e, pytest.mark.long]

LAYOUTS = ("interleaved", "concat")
KV_HEADS = (1, 2)  # replicated on two ranks, and divided among them


def gated_draft(layout: str, kv_heads: int) -> Draft:
    torch.manual_seed(7)
    draft = valid_draft("gated")
    draft.config |= {"gate_layout": layout, "num_key_value_heads": kv_heads}
    for name in "kv":
        matrix = torch.randn(kv_heads * HEAD_DIM, 2 * HIDDEN) * (2 * HIDDEN) ** -0.5
        draft.tensors[f"midlayer.self_attn.{name}_proj.weight"] = matrix.bfloat16()
    if layout == "concat":
        key = "midlayer.self_attn.q_proj.weight"
        by_head = draft.tensors[key].unflatten(0, (HEADS, 2, HEAD_DIM))
        draft.tensors[key] = by_head.transpose(0, 1).flatten(0, 2).contiguous()
    return draft


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder, engines = tmp_path_factory.mktemp("parallel"), []
    texts = [Batch("texts", PROMPTS, max_tokens=MAX_TOKENS)]
    for kv_heads in KV_HEADS:
        target = write_random_target(folder / f"target{kv_heads}", num_key_value_heads=kv_heads)
        for layout in LAYOUTS:
            draft = gated_draft(layout, kv_heads)
            path = write(draft, folder / f"{layout}{kv_heads}")
            speculative = {"method": "eagle3", "model": str(path), "num_speculative_tokens": draft.k}
            engines += [
                Engine(
                    f"{layout} {kv_heads} {ranks}", texts, speculative, target=target, drafts=RECORDED,
                    engine_args=RANDOM_ENGINE | {"tensor_parallel_size": ranks},
                )
                for ranks in (1, 2)
            ]  # fmt: skip
    runs = run_engines(engines, VLLM_CPU_OMP_THREADS_BIND="0|1")
    return {name: batches["texts"] for name, batches in runs.items()}


@pytest.mark.parametrize("kv_heads", KV_HEADS, ids=["kv_replicated", "kv_divided"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ranks_draft_what_one_does(results, layout, kv_heads):
    one, two = (results[f"{layout} {kv_heads} {ranks}"] for ranks in (1, 2))
    assert sum(len(drafts) for drafts in one["drafts"]) > 10
    assert two["drafts"] == one["drafts"]
    assert two["tokens"] == one["tokens"]


@pytest.mark.parametrize("kv_heads", KV_HEADS)
def test_both_layouts_of_one_draft_are_one_draft(results, kv_heads):
    interleaved, concat = (results[f"{layout} {kv_heads} 2"] for layout in LAYOUTS)
    assert interleaved["drafts"] == concat["drafts"]
