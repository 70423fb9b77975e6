"""Rows of a wide q_proj are dropped.

Kind: worked around.
Met by: drafts with gated attention, or with a config of other heads.
Symptom: A gated draft loads silently and drafts almost at random.
Cause: `model_executor/parameter.py`, `_ColumnvLLMParameter.load_qkv_weight` narrows the loaded weight
  to the rows of the heads; more rows are no error.
Releases: 0.32 and 0.33 (run).
Workaround: `families/eagle3/` computes the gate; any other number of rows is refused
  (`attention_is_not_narrowed`).
Can go when: VLLM refuses a weight with rows left over. The gated drafter itself stays.
"""

import tempfile

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.layers.linear import QKVParallelLinear

store = f"file://{tempfile.mkdtemp()}/store"
with set_current_vllm_config(VllmConfig()):
    init_distributed_environment(1, 0, store, 0, "gloo")
    initialize_model_parallel()
    projection = QKVParallelLinear(hidden_size=4, head_size=4, total_num_heads=2, bias=False)
gated = torch.cat([torch.ones(8, 4), torch.full((8, 4), 2.0)])  # rows of queries, then rows of a gate
try:
    projection.weight.weight_loader(projection.weight, gated, "q")
except (AssertionError, RuntimeError, ValueError) as error:
    print(f"fault gone: {error}")
    raise SystemExit(1) from None
kept = int((projection.weight[:8] == 1).all(dim=1).sum())
print(f"fault present: {kept} rows of q_proj are kept, {len(gated) - kept} dropped without a word")
