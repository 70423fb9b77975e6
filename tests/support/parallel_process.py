"""Drafts of small gated heads under tensor parallelism, one engine after the other in one process.

    python -m tests.support.parallel_process JOB RESULT, where JOB names a folder

For each layout of the gate and each number of KV heads: the drafts and texts of one rank and of two.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from tests.support.checkpoints import HEAD_DIM, HEADS, HIDDEN
from tests.support.drafts import Draft, valid_draft, write
from tests.support.families_process import serve, write_random_target

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


def main() -> None:
    folder = Path(json.loads(Path(sys.argv[1]).read_text())["folder"])
    results = {}
    for kv_heads in KV_HEADS:
        target = write_random_target(folder / f"target{kv_heads}", num_key_value_heads=kv_heads)
        for layout in LAYOUTS:
            draft = gated_draft(layout, kv_heads)
            path = write(draft, folder / f"{layout}{kv_heads}")
            speculative: dict[str, Any] = {
                "method": "eagle3", "model": str(path), "num_speculative_tokens": draft.k,
            }  # fmt: skip
            for ranks in (1, 2):
                key = f"{layout} {kv_heads} {ranks}"
                results[key] = serve(target, speculative, record=True, tensor_parallel_size=ranks)
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
