"""A whole vocabulary's map is not loaded.

Kind: worked around.
Met by: EAGLE-3 drafts of SafeAILab, AngelSlim and SpecForge with a whole vocabulary.
Symptom: Loading ends with `There is no module or parameter named 'draft_id_to_target_id'`.
Cause: `model_executor/models/llama_eagle3.py`, `Eagle3LlamaForCausalLM.__init__` has no place for a map
  where the vocabularies are equally large, and `model_executor/models/llama_eagle3.py`,
  `Eagle3LlamaForCausalLM.load_weights` hands on the tensor all the same.
Releases: 0.32 and 0.33 (run).
Workaround: While weights are loaded, `families/parts/strict_weights.py`, `StrictWeights` leaves out a
  map that is the identity; another one is refused beforehand (`d2t_present_iff_reduced`).
Can go when: `load_weights` leaves out a map that is the identity.
"""

import os
import tempfile

os.environ["VLLM_PLUGINS"] = ""  # only vLLM

import torch  # noqa: E402
from transformers import LlamaConfig  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM  # noqa: E402

folder = tempfile.mkdtemp()
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 64}
for name, architecture in (("target", "LlamaForCausalLM"), ("draft", "LlamaForCausalLMEagle3")):
    layers = 4 if name == "target" else 1
    LlamaConfig(**sizes, num_hidden_layers=layers, architectures=[architecture]).save_pretrained(
        f"{folder}/{name}"
    )
speculative = {"method": "eagle3", "model": f"{folder}/draft", "num_speculative_tokens": 2}
config = EngineArgs(
    model=f"{folder}/target", skip_tokenizer_init=True, speculative_config=speculative
).create_engine_config()
with set_current_vllm_config(config):
    init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
    initialize_model_parallel()
    drafter = Eagle3LlamaForCausalLM(vllm_config=config)
try:
    drafter.load_weights(iter({"d2t": torch.zeros(64, dtype=torch.int64)}.items()))
except ValueError as error:
    print(f"fault present: {str(error).partition('. ')[0]}")
else:
    print("fault gone: the map of a whole vocabulary is taken")
    raise SystemExit(1)
