"""A CPU's kernels take packed weights of a convolution that LoRA wraps for plain ones."""

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
# What loading leaves: packed weights in place, and beside them those that the file has.
convolution._cpu_unpacked_conv_weight = torch.arange(32.0).view(8, 4)
convolution.weight.data = torch.zeros(8, 4)
found = _unpacked_conv_weight(SimpleNamespace(conv1d=ColumnParallelLinearWithLoRA(convolution)))
if torch.equal(found, convolution._cpu_unpacked_conv_weight):
    print("fault gone: the weights of the file are found behind the wrapper")
    raise SystemExit(1)
print("fault present: the packed weights are taken, the wrapper has no others")
