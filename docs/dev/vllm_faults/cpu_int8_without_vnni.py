"""Eight-bit products are cut off without VNNI.

Kind: refused beforehand.
Met by: drafts and targets of eight-bit integers (W8A8), on CPUs without VNNI instructions: those with
  only AVX2, and the first with AVX-512. The script asks oneDNN for their kernels on any CPU.
Symptom: W8A8 drafts are random; W8A8 targets give wrong texts.
Cause: `_custom_ops.py`, `onednn_scaled_mm`: oneDNN adds pairs of products in 16 bits there, where those
  of weights beyond 63 do not fit.
Releases: 0.32 (run); 0.33 (its Python run, its compiled kernel neither run nor read).
Workaround: `start/rules/weights.py` refuses such a draft; a target is vLLM's own matter.
Remedy: a draft with plain weights, or another CPU.
Can go when: products of weights up to 127 are exact there.
"""

from __future__ import annotations

import os

os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"  # read at oneDNN's first use

import torch
from vllm import _custom_ops as ops
from vllm.platforms import current_platform

K, N = 256, 64

current_platform.import_kernels()
torch.manual_seed(0)
scales, scale = torch.ones(N), torch.ones(1, 1)
errors = {}
for largest in (63, 127):
    weight = torch.randint(-largest, largest + 1, (N, K), dtype=torch.int8)
    handler = ops.create_onednn_scaled_mm(weight.t(), scales, torch.float32, True, False, 1)
    row = torch.full((1, K), 127, dtype=torch.int8)
    out = torch.empty(1, N)
    ops.onednn_scaled_mm(handler, row, out, scale, None, None, None)
    true = row.float() @ weight.t().float()
    errors[largest] = (out - true).abs().max().item() / true.abs().max().item()

said = ", ".join(f"weights up to {largest}: off by {error:.1%}" for largest, error in errors.items())
if errors[127] < 0.001:
    print(f"fault gone: {said}")
    raise SystemExit(1)
print(f"fault present: {said}")
