"""A DFlash draft's rope table ends before the context.

Kind: worked around.
Met by: DFlash drafts with fewer positions than the target serves.
Symptom: Positions beyond its `max_position_embeddings` read missing rows.
Cause: `config/speculative.py`, `SpeculativeConfig.__post_init__` calls
  `_maybe_override_draft_max_position_embeddings` only for the methods eagle and eagle3.
Releases: 0.32 (run); fixed in 0.33 (run).
Workaround: `families/dflash/config_writer.py`, `write` raises the draft's `max_position_embeddings` to
  `max_model_len`.
Can go when: 0.32 is no longer supported. For ropes that depend on the length (YaRN, dynamic, longrope)
  0.33 lowers the served length to the draft's instead.
"""

import os
import tempfile

os.environ["VLLM_PLUGINS"] = ""  # only vLLM

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
