"""Adapters of the output layer are matched to requests, not to rows.

Kind: explains an observation.
Met by: LoRA adapters that change `lm_head`, with any draft, on the V2 runner.
Symptom: Rows of drafted tokens get another request's adapter, or none: texts are wrong. On a CPU the
  engine ends with `einsum(): subscript b has size ..`.
Cause: `v1/worker/gpu/lora_utils.py`, `LoraState.make_lora_inputs` names one adapter per request for the
  rows of the logits. With drafts a request has 1 + K rows.
Releases: 0.32 (run on a CPU) and 0.33 (by reading).
Workaround: None; a start and `check` warn (`adapters_meet_their_rows`).
Remedy: `--lora-target-modules` without `lm_head`, or `VLLM_USE_V2_MODEL_RUNNER=0`.
Can go when: the mapping has an entry per row of the logits.
"""

import numpy as np
from vllm.v1.worker.gpu.lora_utils import LoraState

K, REQUESTS = 3, 2
state = LoraState(REQUESTS)
rows, _, _ = state.make_lora_inputs(
    ["a", "b"], np.arange(REQUESTS), np.full(REQUESTS, 1 + K, dtype=np.int32)
)
if len(rows) != REQUESTS * (1 + K):
    print(f"fault present: {REQUESTS * (1 + K)} rows of logits, {len(rows)} adapters named")
else:
    print("fault gone: every row of the logits has its adapter")
    raise SystemExit(1)
