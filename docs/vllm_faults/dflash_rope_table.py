"""The rope table of a DFlash draft ends before the target's context does; EAGLE-3's is made longer."""

import os
import tempfile

os.environ["VLLM_PLUGINS"] = ""  # vLLM alone

from transformers import LlamaConfig, Qwen3Config  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402

folder = tempfile.mkdtemp()
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 64}
LlamaConfig(
    **sizes, num_hidden_layers=4, architectures=["LlamaForCausalLM"], max_position_embeddings=1024
).save_pretrained(f"{folder}/target")
Qwen3Config(
    **sizes,
    num_hidden_layers=1,
    architectures=["DFlashDraftModel"],
    max_position_embeddings=256,
    dflash_config={"target_layer_ids": [1, 2], "mask_token_id": 0},
).save_pretrained(f"{folder}/draft")
asked = {"method": "dflash", "model": f"{folder}/draft", "num_speculative_tokens": 3}
config = EngineArgs(
    model=f"{folder}/target", skip_tokenizer_init=True, speculative_config=asked
).create_engine_config()
positions = config.speculative_config.draft_model_config.hf_config.max_position_embeddings
length = config.model_config.max_model_len
if positions >= length:
    print(f"fault gone: {positions} positions for a context of {length}")
    raise SystemExit(1)
print(f"fault present: {positions} positions of the draft for a context of {length}")
