"""K is not compared with the trained block.

Kind: refused beforehand.
Met by: DFlash drafts.
Symptom: With K of the block size or more, the last tokens are hardly ever accepted.
Cause: `config/speculative.py`, `SpeculativeConfig.__post_init__` reads `block_size` only for DSpark.
Releases: 0.32 and 0.33 (run).
Workaround: Refused (`k_is_within_the_block`); a warning with `strict: false`.
Remedy: K below the block size.
Can go when: VLLM compares them.
"""

import os
import tempfile

os.environ["VLLM_PLUGINS"] = ""  # only vLLM

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
