"""More tokens than a DFlash draft's trained block has are asked for, and vLLM checks nothing."""

import os
import tempfile

os.environ["VLLM_PLUGINS"] = ""  # vLLM alone

from transformers import LlamaConfig, Qwen3Config  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402

folder, block, k = tempfile.mkdtemp(), 4, 15
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 64}
LlamaConfig(**sizes, num_hidden_layers=4, architectures=["LlamaForCausalLM"]).save_pretrained(
    f"{folder}/target"
)
Qwen3Config(
    **sizes,
    num_hidden_layers=1,
    architectures=["DFlashDraftModel"],
    block_size=block,
    dflash_config={"target_layer_ids": [1, 2], "mask_token_id": 0},
).save_pretrained(f"{folder}/draft")
asked = {"method": "dflash", "model": f"{folder}/draft", "num_speculative_tokens": k}
try:
    EngineArgs(
        model=f"{folder}/target", skip_tokenizer_init=True, speculative_config=asked
    ).create_engine_config()
except ValueError as error:
    print(f"fault gone: {error}")
    raise SystemExit(1) from None
print(f"fault present: {k} tokens of a draft that was trained on blocks of {block}, without a word")
