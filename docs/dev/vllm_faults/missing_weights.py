"""Missing weights are not noticed.

Kind: worked around.
Met by: any EAGLE-3 or DFlash draft.
Symptom: An incomplete draft serves with uninitialised memory.
Cause: `model_executor/models/llama_eagle3.py`, `Eagle3LlamaForCausalLM.load_weights` returns nothing,
  so that `model_executor/model_loader/default_loader.py`, `DefaultModelLoader.load_weights` does not
  compare; where it does, `track_weights_loading` leaves out plain linear layers.
Releases: 0.32 and 0.33 (run).
Workaround: Refused beforehand (`tensors_are_complete`), and while weights are loaded by
  `families/parts/strict_weights.py`, `StrictWeights`: every parameter starts as NaN and must be finite
  at the end.
Can go when: `load_weights` returns the names, and the loader exempts no layer of a draft.
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
    loaded = drafter.load_weights(iter({"norm.weight": torch.ones(32)}.items()))
except ValueError as error:
    print(f"fault gone: {error}")
    raise SystemExit(1) from None
if loaded is not None:
    print("fault gone: load_weights returns what was loaded, so that vLLM's loader can compare")
    raise SystemExit(1)
print("fault present: a draft with only norm.weight is loaded, and load_weights returns nothing of it")
