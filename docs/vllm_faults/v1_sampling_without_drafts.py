"""The V1 rejection sampler draws random numbers for the whole vocabulary where there is no draft."""

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
