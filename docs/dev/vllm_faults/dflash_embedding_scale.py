"""input_embedding_scale is not read.

Kind: worked around.
Met by: DFlash drafts with scaled embeddings.
Symptom: A draft trained on scaled embeddings drafts almost at random.
Cause: `model_executor/models/qwen3_dflash.py`, `DFlashQwen3Model.embed_input_ids` does not scale;
  DFlash 2 does (`model_executor/models/qwen3_dflash2.py`, `DFlash2Qwen3Model.embed_input_ids`).
Releases: 0.32 and 0.33 (run).
Workaround: `families/dflash/model.py` scales.
Can go when: `DFlashQwen3Model` reads the key.
"""

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
