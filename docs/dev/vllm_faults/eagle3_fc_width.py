"""The width of fc does not follow the layer ids.

Kind: worked around.
Met by: EAGLE-3 drafts of Llama and DeepSeek type whose ids stand at top level.
Symptom: A draft without exactly three aux layers does not load: `Tried to load weights of size ..`.
Cause: `model_executor/models/llama_eagle3.py`, `LlamaModel.__init__` takes the number from
  `num_aux_hidden_states`, then from the nested list, then three; the list at top level, from which both
  runners take the ids, is not asked. `model_executor/models/deepseek_eagle3.py`,
  `DeepseekV2Eagle3Model.__init__` does the same, the Qwen3 class does not.
Releases: 0.32 and 0.33 (run).
Workaround: `start/apply.py`, `apply_spec` writes `num_aux_hidden_states`.
Can go when: The three drafter classes count the ids that the runners read.
"""

import os
import tempfile

os.environ["VLLM_PLUGINS"] = ""  # only vLLM

from transformers import LlamaConfig  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM  # noqa: E402

folder, ids = tempfile.mkdtemp(), [0, 1, 2, 3, 4]
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 64}
LlamaConfig(**sizes, num_hidden_layers=4, architectures=["LlamaForCausalLM"]).save_pretrained(
    f"{folder}/target"
)
LlamaConfig(
    **sizes,
    num_hidden_layers=1,
    architectures=["LlamaForCausalLMEagle3"],
    eagle_aux_hidden_state_layer_ids=ids,
).save_pretrained(f"{folder}/draft")
speculative = {"method": "eagle3", "model": f"{folder}/draft", "num_speculative_tokens": 2}
config = EngineArgs(
    model=f"{folder}/target", skip_tokenizer_init=True, speculative_config=speculative
).create_engine_config()
with set_current_vllm_config(config):
    init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
    initialize_model_parallel()
    drafter = Eagle3LlamaForCausalLM(vllm_config=config)
states = drafter.model.fc.weight.shape[1] // 32
if states == len(ids):
    print("fault gone: fc reads as many states as layers are named")
    raise SystemExit(1)
print(f"fault present: {len(ids)} layers are named, fc reads {states} states")
