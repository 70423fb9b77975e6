"""Norm flags in eagle_config are not read.

Kind: worked around.
Met by: EAGLE-3 drafts that nest fc_norm or norm_output.
Symptom: A nested `norm_output` is ignored; a nested `fc_norm` does not load.
Cause: `model_executor/models/llama_eagle3.py`, `LlamaModel.__init__` reads both flags only at
  top level, and `norm_before_fc` in `eagle_config` first.
Releases: 0.32 and 0.33 (run).
Workaround: `families/eagle3/config_writer.py`, `write`: each flag is read wherever trainers write it,
  must have one value, and is written where vLLM reads it.
Can go when: The drafter classes read all flags from the same places.
"""

import os
import tempfile

os.environ["VLLM_PLUGINS"] = ""  # only vLLM

from transformers import LlamaConfig  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM  # noqa: E402

folder = tempfile.mkdtemp()
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 64}
LlamaConfig(**sizes, num_hidden_layers=4, architectures=["LlamaForCausalLM"]).save_pretrained(
    f"{folder}/target"
)
LlamaConfig(
    **sizes,
    num_hidden_layers=1,
    architectures=["LlamaForCausalLMEagle3"],
    eagle_config={"norm_before_fc": True, "fc_norm": True, "norm_output": True},
).save_pretrained(f"{folder}/draft")
speculative = {"method": "eagle3", "model": f"{folder}/draft", "num_speculative_tokens": 2}
config = EngineArgs(
    model=f"{folder}/target", skip_tokenizer_init=True, speculative_config=speculative
).create_engine_config()
with set_current_vllm_config(config):
    init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
    initialize_model_parallel()
    model = Eagle3LlamaForCausalLM(vllm_config=config).model
if model.norm_output and model.fc_norm is not None:
    print("fault gone: nested flags are read")
    raise SystemExit(1)
print(
    f"fault present: norm_before_fc {model.norm_before_fc}, fc_norm {model.fc_norm is not None}, "
    f"norm_output {model.norm_output}, where all three are true"
)
