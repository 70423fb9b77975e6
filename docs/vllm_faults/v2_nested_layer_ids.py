"""Layer ids nested in `eagle_config`: the V1 runner reads them, the V2 runner does not."""

from types import SimpleNamespace

from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

nested = {"eagle_aux_hidden_state_layer_ids": [1, 9, 17, 25, 33]}
draft = SimpleNamespace(hf_config=SimpleNamespace(eagle_config=nested))
speculative = SimpleNamespace(draft_model_config=draft)
v1 = GPUModelRunner._get_eagle3_aux_layers_from_config(SimpleNamespace(speculative_config=speculative))
v2 = get_eagle3_aux_layers_from_config(speculative)
if v1 != v2:
    print(f"fault present: V1 reads {v1}, V2 {v2}, which means the default of three layers")
else:
    print(f"fault gone: both runners read {v1}")
    raise SystemExit(1)
