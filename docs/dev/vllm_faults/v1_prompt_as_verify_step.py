"""A prompt of 1 + K tokens takes the graph of verified rows.

Kind: refused beforehand.
Met by: hybrid targets on the V1 runner of a GPU.
Symptom: A first prompt of that length is taken for drafts
  (https://github.com/vllm-project/vllm/issues/53051). The script shows how the step is classified; what
  the graph then computes needs a GPU and was not run here.
Cause: `v1/worker/gpu_model_runner.py`, `GPUModelRunner._is_uniform_decode` looks only at the number
  of tokens.
Releases: 0.32 and 0.33 (run).
Workaround: Replay is not offered there: `auto` takes one state block per draft token, `replay` is
  refused (`start/rules/states.py`, `unsupported_by_replay`).
Can go when: V1 asks whether the rows are decodes, or the V1 runner goes.
"""

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

K = 7
is_verify = GPUModelRunner._is_uniform_decode(
    max_num_scheduled_tokens=1 + K, uniform_decode_query_len=1 + K, num_tokens=1 + K, num_reqs=1
)
if is_verify:
    print(f"fault present: a first prompt of {1 + K} tokens is a uniform decode step by its length")
else:
    print("fault gone: a prompt is not taken for a decode step")
    raise SystemExit(1)
