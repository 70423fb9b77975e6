"""One flag of speculators, about windowed layers, makes every layer of a DFlash draft causal."""

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
