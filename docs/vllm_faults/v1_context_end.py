"""One request without room for K more tokens ends drafting for every request of V1's step."""

from types import SimpleNamespace

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

runner = SimpleNamespace(
    num_spec_tokens=4,
    effective_drafter_max_model_len=1024,
    speculative_config=SimpleNamespace(use_dflash=lambda: False),
)
lengths = [10, 20, 1022]  # of the step's requests
fits = GPUModelRunner._input_fits_in_drafter(runner, SimpleNamespace(max_seq_len=max(lengths)))
if fits is False:
    print(f"fault present: of requests of {lengths} tokens none is drafted for")
else:
    print(f"fault gone: {fits}")
    raise SystemExit(1)
