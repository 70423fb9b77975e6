"""V1 takes a prompt of 1 + K tokens for a step that verifies drafts (vllm#53051)."""

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

K = 7
is_verify = GPUModelRunner._is_uniform_decode(
    max_num_scheduled_tokens=1 + K, uniform_decode_query_len=1 + K, num_tokens=1 + K, num_reqs=1
)
if is_verify:
    print(f"fault present: a first prompt of {1 + K} tokens is a uniform decode step by its length")
else:
    print("fault gone: a prompt is told apart")
    raise SystemExit(1)
