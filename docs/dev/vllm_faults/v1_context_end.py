"""One request at its context's end stops all drafting.

Kind: worked around.
Met by: any draft on the V1 runner.
Symptom: While one request has no room for K tokens, none gets drafts.
Cause: `v1/worker/gpu_model_runner.py`, `GPUModelRunner._input_fits_in_drafter` compares the longest
  request of the step with the draft's `max_model_len` and gives one answer for all.
Releases: 0.32 and 0.33 (run).
Workaround: `families/eagle3/config_writer.py`, `_draft_to_the_end`: the draft's `max_model_len` becomes
  K longer where the drafter clamps its positions, as EAGLE-3 does. A DFlash block needs the room:
  there, set `--max-model-len` K + 1 tokens above the longest request (docs/serving.md).
Remedy: with DFlash, set `--max-model-len` K + 1 tokens above the longest request.
Can go when: V1's `_input_fits_in_drafter` goes by request, or the V1 runner goes.
"""

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
