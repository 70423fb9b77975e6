"""The CPU kernel of `rotary_embedding` misreads queries of three dimensions, as latent attention has."""

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
