"""Queries of three dimensions are rotated wrongly.

Kind: explains an observation.
Met by: targets and drafts with latent attention (DeepSeek, Kimi) on a CPU.
Symptom: Texts of DeepSeek and Kimi targets differ from Hugging Face's.
Cause: `model_executor/layers/rotary_embedding/base.py`, `RotaryEmbedding.forward_cpu` hands [tokens,
  heads, d] to a C++ kernel that reads it otherwise, where `model_executor/layers/mla.py`,
  `MultiHeadLatentAttentionWrapper.forward` passes its queries so.
Releases: 0.32 (run) and 0.33 (its Python run, its compiled kernel neither run nor read).
Workaround: None, since it has nothing to do with drafts. Tests of such targets set `custom_ops:
  ["-rotary_embedding"]` (docs/targets.md).
Remedy: `custom_ops: ["-rotary_embedding"]` in the compilation config.
Can go when: `forward_cpu` agrees with `forward_native`.
"""

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.platforms import current_platform

current_platform.import_kernels()
with set_current_vllm_config(VllmConfig()):
    rope = RotaryEmbedding(8, 8, 64, 10000, False, torch.float32)
positions = torch.arange(3)
query, key = torch.randn(3, 4, 8), torch.randn(3, 1, 8)  # [tokens, heads, d]
expected = rope.forward_native(positions, query.clone(), key.clone())[0]
found = rope.forward_cpu(positions, query.clone(), key.clone())[0]
if torch.allclose(found, expected, atol=1e-5):
    print("fault gone: queries are rotated as by the native code")
    raise SystemExit(1)
print(f"fault present: rotated queries differ from native ones by {(found - expected).abs().max():.2f}")
