"""The first stage of a V1 pipeline asks for the drafter, which only the last stage has."""

from types import SimpleNamespace

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

first_stage = SimpleNamespace(  # `__init__` sets `drafter` on the last rank alone
    compilation_config=SimpleNamespace(resolve_cudagraph_mode_and_sizes=lambda *_, **__: None),
    cudagraph_dispatcher=SimpleNamespace(initialize_cudagraph_keys=lambda *_: None),
    speculative_config=SimpleNamespace(use_eagle=lambda: True),
    uniform_decode_query_len=5,
    kv_cache_config=None,
    max_num_reqs=1,
)
try:
    GPUModelRunner._check_and_update_cudagraph_mode(first_stage, [], [])
except AttributeError as error:
    print(f"fault present: {error}")
else:
    print("fault gone: a stage without the drafter is passed over")
    raise SystemExit(1)
