"""bias is read for one projection of four.

Kind: refused beforehand.
Met by: EAGLE-3 drafts with the older key `bias`.
Symptom: A draft with `bias` loses the biases of q, k and v.
Cause: `model_executor/models/llama.py`, `LlamaDecoderLayer.__init__` reads both keys, for `o_proj`;
  `model_executor/models/llama_eagle3.py`, `LlamaDecoderLayer.__init__` builds q, k and v anew
  and reads only `attention_bias`.
Releases: 0.32 and 0.33 (by reading).
No script: both places are plain to read, and `unread_bias.py` shows that the loader then drops them.
Workaround: Refused (`bias_is_called_attention_bias`).
Remedy: call the key `attention_bias`.
Can go when: The drafter's layer reads both keys.
"""
