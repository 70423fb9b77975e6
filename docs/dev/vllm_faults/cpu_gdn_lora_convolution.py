"""A convolution with adapters uses packed weights.

Kind: worked around.
Met by: LoRA with drafts on a hybrid target, on a CPU that packs the weights of short convolutions.
Symptom: Texts are wrong, even in requests without an adapter.
Cause: `model_executor/layers/mamba/ops/cpu/gdn_attention.py`, `_unpacked_conv_weight` looks for the
  weights as they were before they were packed on the module, and LoRA has put a wrapper in its place,
  which has them one deeper.
Releases: 0.32 (run) and 0.33 (by reading).
Workaround: `replay/on_cpu.py`, `CpuOps.convolve` hands them on to the wrapper. With one state block per
  draft token the target is vLLM's own, and the start is refused where vLLM packs
  (`start/rules/states.py`, `per_token_misreads`); elsewhere texts are those without a draft
  (`pytest tests/e2e/test_adapters.py -k unpacked`).
Remedy: replay.
Can go when: vLLM looks into the wrapper.
"""

import tempfile
from types import SimpleNamespace

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.lora.layers import ColumnParallelLinearWithLoRA
from vllm.model_executor.layers.linear import ColumnParallelLinear
from vllm.model_executor.layers.mamba.ops.cpu.gdn_attention import _unpacked_conv_weight

store = f"file://{tempfile.mkdtemp()}/store"
with set_current_vllm_config(VllmConfig()):
    init_distributed_environment(1, 0, store, 0, "gloo")
    initialize_model_parallel()
    convolution = ColumnParallelLinear(4, 8, bias=False)
# Loading leaves packed weights in place, and also keeps those that the file has.
convolution._cpu_unpacked_conv_weight = torch.arange(32.0).view(8, 4)
convolution.weight.data = torch.zeros(8, 4)
found = _unpacked_conv_weight(SimpleNamespace(conv1d=ColumnParallelLinearWithLoRA(convolution)))
if torch.equal(found, convolution._cpu_unpacked_conv_weight):
    print("fault gone: the weights of the file are found inside the wrapper")
    raise SystemExit(1)
print("fault present: the packed weights are taken, the wrapper has no others")
