"""V2 ignores layer ids in eagle_config.

Kind: worked around.
Met by: EAGLE-3 drafts that nest their ids.
Symptom: A five-layer draft crashes with a shape error; a three-layer one silently gets default layers.
  V1 reads the ids as inputs of layers, although most trainers that nest them name layers whose output
  is read.
Cause: `v1/worker/gpu_model_runner.py`, `GPUModelRunner._get_eagle3_aux_layers_from_config` knows the
  nested list, `v1/worker/gpu/spec_decode/eagle/eagle3_utils.py`, `get_eagle3_aux_layers_from_config`
  does not. Neither sees the target's depth or knows the convention of the ids.
Releases: 0.32 and 0.33 (run).
Workaround: `start/apply.py`, `apply_spec`, called at the seam of `compat.py`
  (`EngineArgs.create_speculative_config`): the ids are resolved once (docs/drafts.md) and written at
  top level and nested.
Can go when: Both runners read one list, and vLLM offers a hook on a draft's config that sees the
  target's config (https://github.com/vllm-project/vllm/issues/36219).
"""

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
