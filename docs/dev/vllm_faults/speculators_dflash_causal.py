"""One flag about windowed layers makes all layers causal.

Kind: worked around.
Met by: DFlash drafts in the speculators format.
Symptom: `sliding_window_non_causal: false` changes full-attention layers, too: late tokens are accepted
  less.
Cause: `transformers_utils/configs/speculators/algos.py`, `update_dflash` makes `dflash_config.causal`
  of it, which `model_executor/models/qwen3_dflash.py`, `_dflash_layer_causal` applies to every layer
  before it asks for the layer's type.
Releases: 0.32 and 0.33 (run).
Workaround: `families/dflash/config_writer.py`, `write` takes the flag out, so that causality goes by
  layer.
Can go when: `update_dflash` states causality per layer.
"""

from types import SimpleNamespace

from vllm.model_executor.models.qwen3_dflash import _dflash_layer_causal
from vllm.transformers_utils.configs.speculators.algos import update_dflash

layer_types = ["sliding_attention", "full_attention"]  # trained causally and bidirectionally
config = {"layer_types": layer_types}
published = {
    "aux_hidden_state_layer_ids": [2, 6],
    "mask_token_id": 0,
    "sliding_window_non_causal": False,
}
update_dflash(published, config)
causal = [_dflash_layer_causal(SimpleNamespace(**config), layer) for layer in range(2)]
if causal == [True, False]:
    print("fault gone: the full-attention layer is bidirectional")
    raise SystemExit(1)
print(f"fault present: {dict(zip(layer_types, causal, strict=True))} are causal")
