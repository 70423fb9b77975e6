"""A draft that reads the embeddings (layer id 0) of a DeepSeek target: there is no residual yet."""

import tempfile
from types import SimpleNamespace

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.models.deepseek_v2 import DeepseekV2Model

store = f"file://{tempfile.mkdtemp()}/store"
with set_current_vllm_config(VllmConfig()):
    init_distributed_environment(1, 0, store, 0, "gloo")
    initialize_model_parallel()
layer = SimpleNamespace(use_sequence_parallel_moe=False)
target = SimpleNamespace(
    embed_input_ids=lambda ids: torch.ones(len(ids), 2),
    config=SimpleNamespace(),
    llama_4_scaling_config=None,
    layers=[layer],
    start_layer=0,
    end_layer=1,
    aux_hidden_state_layers=(0,),
)
try:
    DeepseekV2Model.forward(target, torch.tensor([0]), torch.tensor([0]), None)
except TypeError as error:
    if "NoneType" in str(error):
        print(f"fault present: {error}")
        raise SystemExit(0) from None
print("fault gone: the embeddings were captured")
raise SystemExit(1)
