"""A step without drafts is sampled as if it had some.

Kind: worked around.
Met by: any draft on the V1 runner; at K = 0 all steps.
Symptom: Sampling costs several times as much. With sampled requests most of that is a random number and
  a division for each request and token of the vocabulary, of which none is used.
Cause: `v1/worker/gpu_model_runner.py`, `GPUModelRunner._prepare_inputs` makes draft metadata for each
  step of an engine with a draft, and the rejection sampler gets them all:
  `v1/sample/rejection_sampler.py`, `sample_recovered_tokens` draws before it looks whether there is a
  draft.
Releases: 0.32 (run) and 0.33 (read).
Workaround: `compat.py`, `install_cpu_workarounds`: on a CPU `_sample` gets no draft metadata where they
  hold no draft.
Can go when: V1 makes no draft metadata for a step without drafts, or goes.
"""

from types import SimpleNamespace
from unittest import mock

import torch
from vllm.v1.sample import rejection_sampler
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

REQUESTS, VOCABULARY = 4, 1000
nothing = torch.empty(0, dtype=torch.int32)
before = torch.get_rng_state()
with mock.patch.object(rejection_sampler, "_sample_recovered_tokens"):  # the kernel, which runs no block
    rejection_sampler.sample_recovered_tokens(
        0, [0] * REQUESTS, torch.zeros(REQUESTS, dtype=torch.int32), nothing, None,
        torch.empty(0, VOCABULARY), SimpleNamespace(generators={}), torch.device("cpu"),
    )  # fmt: skip
draws = not torch.equal(before, torch.get_rng_state())
# Whether any step of an engine with a draft comes there without one.
if draws and "_calc_spec_decode_metadata" in GPUModelRunner._prepare_inputs.__code__.co_names:
    print(f"fault present: {REQUESTS} requests without drafts cost random numbers")
else:
    print("fault gone: nothing is drawn for requests without drafts")
    raise SystemExit(1)
