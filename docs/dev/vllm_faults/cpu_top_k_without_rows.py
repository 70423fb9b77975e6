"""Top-k without top-p fails in a step without drafts.

Kind: worked around.
Met by: sampled requests with any draft on a CPU.
Symptom: The engine ends with `max(): Expected reduction dim to be specified`.
Cause: `v1/sample/ops/topk_topp_sampler.py`, `apply_top_k_only` takes the maximum of k over the rows, of
  which there are none; the rejection sampler calls it for empty batches, too.
Releases: 0.32 and 0.33 (run).
Workaround: `compat.py`, `install_cpu_workarounds`: steps without drafts are sampled by vLLM's plain
  sampler, as without a draft (`GPUModelRunner._sample`).
Can go when: V1 makes no draft metadata for a step without drafts.
"""

import torch
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_only

try:
    apply_top_k_only(torch.empty(0, 8), torch.empty(0, dtype=torch.int32))
except RuntimeError as error:
    print(f"fault present: {str(error).splitlines()[0]}")
else:
    print("fault gone: top-k takes an empty batch")
    raise SystemExit(1)
