"""A seed ends the engine after a prompt in chunks.

Kind: explains an observation.
Met by: requests with a seed on a CPU whose prompt takes several steps.
Symptom: The engine ends with `CPU Generator does not use offset`.
Cause: `v1/worker/gpu_model_runner.py`, `GPUModelRunner._bookkeeping_sync` sets the generator of a
  request whose sample is discarded back by an offset, which only generators of GPUs have.
Releases: 0.32 and 0.33 (run).
Workaround: None, since it has nothing to do with drafts; the load test sends such prompts without a
  seed.
Remedy: no seed in such requests.
Can go when: A CPU's generator is set back by its state.
"""

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
except AttributeError:  # of this runner, after the place
    print("fault gone: the generator was set back")
    raise SystemExit(1) from None
