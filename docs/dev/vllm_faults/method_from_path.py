"""Words in a path beat the method.

Kind: refused beforehand.
Met by: drafts in folders with `eagle-`, `eagle3`, `dflash` or `dspark` in their path.
Symptom: A draft model with `eagle-`, `eagle3`, `dflash` or `dspark` in its path runs as another kind.
  Without a method, an EAGLE-3 draft elsewhere becomes a draft model.
Cause: `config/speculative.py`, `SpeculativeConfig.__post_init__` looks at the path unless the method is
  eagle, eagle3, dflash or dspark.
Releases: 0.32 and 0.33 (run).
Workaround: Supported drafts are refused under another method than their own
  (`method_fits_the_architecture`). Draft models are passed through to vLLM, where the fault stays.
Remedy: name the method, and avoid these words.
Can go when: A method that the user names is kept.
"""

import os
import tempfile

os.environ["VLLM_PLUGINS"] = ""  # only vLLM

from transformers import LlamaConfig  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402

folder = tempfile.mkdtemp()
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 64}
model = LlamaConfig(**sizes, num_hidden_layers=4, architectures=["LlamaForCausalLM"])
model.save_pretrained(f"{folder}/target")
model.save_pretrained(f"{folder}/not-an-eagle-head")
asked = {"method": "draft_model", "model": f"{folder}/not-an-eagle-head", "num_speculative_tokens": 2}
args = EngineArgs(model=f"{folder}/target", skip_tokenizer_init=True, speculative_config=asked)
try:
    method = args.create_engine_config().speculative_config.method
except ValueError as error:  # of the method that vLLM took instead
    method = str(error).splitlines()[-2].strip()
if method == "draft_model":
    print("fault gone: the method is the one that was named")
    raise SystemExit(1)
print(f"fault present: method draft_model of a draft in not-an-eagle-head becomes {method}")
