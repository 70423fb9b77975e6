"""Sampled requests are verified with uninitialised settings.

Kind: worked around.
Met by: any draft on a CPU.
Symptom: Sampled texts follow a wrong distribution and ignore seeds; greedy ones may change.
Cause: `utils/cpu_triton_utils.py`, `_expand_kernel_impl`: the C++ kernel wants int64, so it is handed a
  converted copy of the output and fills that; the temperatures, top-k and top-p of the verified tokens
  stay as they were allocated by `v1/sample/rejection_sampler.py`, `expand_batch_to_tokens`.
  https://github.com/vllm-project/vllm/issues/55005.
Releases: 0.32 and 0.33 (run).
Workaround: `compat.py`, `install_cpu_workarounds`: `expand_batch_to_tokens` is replaced by torch
  operations while a drafter of this package or a replaying target serves on a CPU.
Can go when: `_expand_kernel_impl` fills what it is given, in its dtype.
"""

import torch
from vllm.platforms import current_platform

current_platform.import_kernels()
from vllm.utils.cpu_triton_utils import _expand_kernel_impl  # noqa: E402

# Temperatures of two requests, for the rows 0 and 1 to 2 that are verified.
rows = torch.full((3,), -7.0)
_expand_kernel_impl(rows, torch.tensor([0.5, 0.7]), torch.tensor([1, 3]), 0, 1)
if torch.equal(rows, torch.tensor([0.5, 0.7, 0.7])):
    print("fault gone: the temperatures were expanded")
    raise SystemExit(1)
print(f"fault present: temperatures {rows.tolist()} of the verified rows, not [0.5, 0.7, 0.7]")
