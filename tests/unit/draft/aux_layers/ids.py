"""Where a config may list its aux layers."""

from __future__ import annotations

from typing import Any

from vllm_eagle_ext.draft.layer_ids import resolve_aux_layers
from vllm_eagle_ext.draft.registry import families

KEY = "eagle_aux_hidden_state_layer_ids"
SHORT = "aux_hidden_state_layer_ids"
OUTPUTS = "target_layer_ids"
ANGELSLIM = "aux_hidden_states_layer_ids"
MODELOPT: dict[str, Any] = {"use_last_layernorm": True, "use_mtp_layernorm": False}  # beside its ids
N = 12


def resolve(config: dict[str, Any], family: str = "native", **options: Any) -> Any:
    convention = families()[family].id_convention
    return resolve_aux_layers(config, num_target_layers=N, convention=convention, **options)


def nested(*ids: int) -> dict[str, Any]:
    return {"eagle_config": {KEY: list(ids)}}


def dflash(*ids: int) -> dict[str, Any]:
    return {"dflash_config": {OUTPUTS: list(ids)}}
