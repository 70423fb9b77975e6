"""A pipeline's first stage lacks the drafter.

Kind: refused beforehand.
Met by: pipeline parallelism with any EAGLE or DFlash draft.
Symptom: V1 fails after loading: `object has no attribute 'drafter'`. V2 draws a line of its own:
  targets whose layers do not hand on aux states raise, and so does a draft without embeddings of its
  own.
Cause: `v1/worker/gpu_model_runner.py`, `GPUModelRunner.__init__` makes the drafter on the last stage,
  `v1/worker/gpu_model_runner.py`, `GPUModelRunner._check_and_update_cudagraph_mode` asks every stage
  for it, and no stage of V1 hands on aux states.
Releases: 0.32 and 0.33 (run).
Workaround: Refused before weights are loaded on V1, and on V2 without embeddings of the draft's own
  (`start/rules/parallel.py`, `pipeline_stages_can_draft`).
Remedy: no pipeline, or on V2 a draft with own embeddings.
Can go when: V1 hands on aux states, or goes.
"""

from types import SimpleNamespace

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

first_stage = SimpleNamespace(  # `__init__` sets `drafter` only on the last rank
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
