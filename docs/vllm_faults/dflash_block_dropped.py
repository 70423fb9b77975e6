"""The last cached block of a hit is computed anew for DFlash, whose cache does not need it."""

import os
import tempfile

os.environ["VLLM_PLUGINS"] = ""  # vLLM alone

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
    print("fault present: the block behind a hit is dropped for a DFlash draft as for an EAGLE one")
else:
    print("fault gone: no block is dropped for a DFlash draft")
    raise SystemExit(1)
