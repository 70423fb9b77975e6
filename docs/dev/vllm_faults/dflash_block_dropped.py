"""A cached block is computed anew for DFlash.

Kind: worked around.
Met by: DFlash drafts with prefix caching.
Symptom: A prefix-cache hit is one block short.
Cause: `config/speculative.py`, `SpeculativeConfig.use_eagle_block_drop` is true of every method of the
  EAGLE kind, because an EAGLE row at the end of a block may belong to another continuation. A DFlash
  row depends only on the target's state.
Releases: 0.32 (run); fixed in 0.33 (run: `needs_eagle_block_drop`).
Workaround: `start/apply.py`, `keep_last_block` sets `disable_eagle_block_drop` of the
  speculative config, vLLM's own switch, unless it is given.
Can go when: 0.32 is no longer supported.
"""

import os
import tempfile

os.environ["VLLM_PLUGINS"] = ""  # only vLLM

from transformers import LlamaConfig, Qwen3Config  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402

folder = tempfile.mkdtemp()
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 64}
LlamaConfig(**sizes, num_hidden_layers=4, architectures=["LlamaForCausalLM"]).save_pretrained(
    f"{folder}/target"
)
Qwen3Config(
    **sizes,
    num_hidden_layers=1,
    architectures=["DFlashDraftModel"],
    dflash_config={"target_layer_ids": [1, 2], "mask_token_id": 0},
).save_pretrained(f"{folder}/draft")
asked = {"method": "dflash", "model": f"{folder}/draft", "num_speculative_tokens": 3}
speculative = (
    EngineArgs(model=f"{folder}/target", skip_tokenizer_init=True, speculative_config=asked)
    .create_engine_config()
    .speculative_config
)
# 0.33 asks `needs_eagle_block_drop`.
drops = getattr(speculative, "needs_eagle_block_drop", speculative.use_eagle_block_drop)()
if drops:
    print("fault present: the block after a hit is dropped for a DFlash draft as for an EAGLE one")
else:
    print("fault gone: no block is dropped for a DFlash draft")
    raise SystemExit(1)
