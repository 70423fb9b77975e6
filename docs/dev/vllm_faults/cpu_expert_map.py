"""Experts of other ranks are computed.

Kind: explains an observation.
Met by: expert parallelism on a CPU.
Symptom: The worker dies at the first step.
Cause: `model_executor/layers/fused_moe/experts/cpu_moe.py`, `CPUUnquantizedExperts.apply` takes
  `expert_map` and does not use it: ids of the whole model index the rank's own weights.
Releases: 0.32 and 0.33 (run).
Workaround: None, since it has nothing to do with drafts.
Remedy: no expert parallelism on a CPU.
Can go when: `apply` maps the ids.
"""

from types import SimpleNamespace

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.platforms import current_platform

current_platform.import_kernels()
from vllm import _custom_ops as ops  # noqa: E402

isa, size, width = "vec", 32, 64
w1 = ops.cpu_prepack_moe_weight(torch.randn(2, 2 * width, size, dtype=torch.bfloat16), isa)
w2 = ops.cpu_prepack_moe_weight(torch.randn(2, size, width, dtype=torch.bfloat16), isa)
experts = SimpleNamespace(_use_zentorch=False, w1_bias=None, w2_bias=None, isa=isa)
out = torch.zeros(1, size, dtype=torch.bfloat16)
CPUUnquantizedExperts.apply(
    experts, out, torch.ones_like(out), w1, w2,
    topk_weights=torch.ones(1, 1), topk_ids=torch.zeros(1, 1, dtype=torch.int32),
    activation=MoEActivation.SILU, global_num_experts=4,
    expert_map=torch.tensor([-1, -1, 0, 1], dtype=torch.int32),  # expert 0 is on the other rank
    a1q_scale=None, a2_scale=None, workspace13=None, workspace2=None, expert_tokens_meta=None,
    apply_router_weight_on_input=False,
)  # fmt: skip
if out.any():
    print("fault present: the rank of the experts 2 and 3 answers for expert 0")
else:
    print("fault gone: expert 0 is left to its rank")
    raise SystemExit(1)
