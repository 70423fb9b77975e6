"""The first layer's weight norms all layers' context keys.

Kind: worked around.
Met by: DFlash drafts on a CPU.
Symptom: DFlash drafts are accepted far less.
Cause: `model_executor/models/qwen3_dflash.py`, `DFlashQwen3Model._normalize_context_k` hands `rms_norm`
  the weights of all layers, [layers, d], as the CUDA kernel takes them; the CPU's kernel reads the
  first row for all.
Releases: 0.32 (run) and 0.33 (its Python run, its compiled kernel neither run nor read).
Workaround: `families/dflash/model.py` norms layer by layer on a CPU.
Can go when: The CPU kernel of `rms_norm` selects the weight by the outermost index.
"""

import torch
from vllm.platforms import current_platform

current_platform.import_kernels()
from vllm import _custom_ops as ops  # noqa: E402

keys = torch.ones(2, 3, 1, 8)  # [layers, tokens, heads, d]: each layer's keys are normed by its weight
weights = torch.tensor([1.0, 5.0])[:, None].expand(2, 8).contiguous()
normed = torch.empty_like(keys)
ops.rms_norm(normed, keys, weights, 1e-6)  # as DFlashQwen3Model._normalize_context_k calls it
if torch.allclose(normed[1], torch.tensor(5.0), atol=1e-3):
    print("fault gone: each layer's keys are normed by their own weights")
    raise SystemExit(1)
print(f"fault present: layer 1 is normed by {normed[1].mean():.1f}, layer 0's weight, not by 5.0")
