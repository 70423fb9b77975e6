"""A CPU request with a seed fails when its prompt takes several steps."""

from types import SimpleNamespace

import numpy as np
import torch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

seeded = {0: torch.Generator().manual_seed(7)}
runner = SimpleNamespace(
    use_async_scheduling=False,
    input_batch=SimpleNamespace(num_reqs=1, generators=seeded),
    discard_request_mask=SimpleNamespace(np=np.array([True])),  # its prompt goes on
)
try:
    GPUModelRunner._bookkeeping_sync(runner, None, None, None, None, 0)
except RuntimeError as error:
    print(f"fault present: {str(error).splitlines()[0]}")
except AttributeError:  # of this runner, behind the place
    print("fault gone: the generator was set back")
    raise SystemExit(1) from None
