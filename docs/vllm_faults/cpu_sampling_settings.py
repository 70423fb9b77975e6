"""A CPU's stand-in for `expand_kernel` leaves its output as it was allocated (vllm#55005)."""

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
