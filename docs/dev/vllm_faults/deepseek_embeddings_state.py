"""DeepSeek layers cannot hand out their embeddings.

Kind: refused beforehand.
Met by: drafts that read aux hidden-state layer id 0 of a DeepSeek, Kimi or Mistral Large 3 target.
Symptom: The first step ends with `unsupported operand type(s) for +: 'Tensor' and 'NoneType'`.
Cause: `model_executor/models/deepseek_v2.py`, `DeepseekV2Model.forward` adds the residual stream before
  layer 0, where there is none yet. Other targets guard it (`model_executor/models/interfaces.py`,
  `EagleModelMixin._maybe_add_hidden_state`).
Releases: 0.32 and 0.33 (run).
Workaround: Refused before weights are loaded (`start/rules/target.py`,
  `target_hands_out_its_embeddings`).
Can go when: `DeepseekV2Model.forward` guards it as well.
"""

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
