"""A oneDNN handler that is freed while torch traces prints a traceback.

Kind: explains an observation.
Met by: compiled engines on a CPU.
Symptom: A start's log has `Exception ignored in: <function CPUDNNLGEMMHandler.__del__ ..>`, with up to
  1,650 lines, and the handler's memory stays taken.
Cause: `_custom_ops.py`, `CPUDNNLGEMMHandler` frees by `handler_tensor.item()`. Old layers go in a
  garbage collection, which may fall into torch.compile's tracing, where a real tensor is refused.
Releases: 0.32 (run).
Workaround: None. `make serve` and docs/usage.md are eager, where nothing is traced.
Remedy: ignore it, or `--enforce-eager`.
Can go when: The handler keeps its pointer as an int, or frees it outside tracing.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from vllm import _custom_ops as ops

handler = ops.create_onednn_mm(torch.ones(64, 64).t(), 1)
try:
    with FakeTensorMode():
        handler.__del__()
except AssertionError as error:
    print(f"fault present: {str(error).splitlines()[0][:60]}")
    raise SystemExit(0) from None
handler.handler_tensor = None  # it is free now
print("fault gone: a handler can be freed while torch traces")
raise SystemExit(1)
