"""`input_embedding_scale` of a DFlash draft is not read; that of DFlash 2 is."""

from types import SimpleNamespace

import torch
from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

drafter = SimpleNamespace(
    config=SimpleNamespace(dflash_config={"input_embedding_scale": 8.0}),
    embed_tokens=torch.nn.Embedding.from_pretrained(torch.ones(4, 2)),
    has_separate_mask_embedding=False,
)
found = DFlashQwen3Model.embed_input_ids(drafter, torch.tensor([0])).max()
if found == 8:
    print("fault gone: embeddings are scaled")
    raise SystemExit(1)
print(f"fault present: embeddings of 1 under a scale of 8 are {found:.0f}")
