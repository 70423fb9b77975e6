"""Top-k without Triton fails in a step that verifies no row."""

import torch
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_only

try:
    apply_top_k_only(torch.empty(0, 8), torch.empty(0, dtype=torch.int32))
except RuntimeError as error:
    print(f"fault present: {str(error).splitlines()[0]}")
else:
    print("fault gone: top-k takes an empty batch")
    raise SystemExit(1)
