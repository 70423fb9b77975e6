"""Aux layers that are not named, miscounted, or listed out of order."""

from __future__ import annotations

from tests.unit.draft.rules.broken import case
from tests.unit.draft.rules.changes import IDS, TOP_IDS, key, no_key

# fmt: off
CASES = [
    case(
        "aux_layers_are_stated", "none", "native", no_key(IDS), words=(TOP_IDS, "[2, 4, 5] is taken"),
    ),
    case(
        "aux_layer_ids_may_be_inputs", "the_default", "native", key(IDS, [2, 4, 5]),
        words=("[2, 4, 5]", "layers [3, 5, 6]", '"input"'),
    ),
    case(
        "aux_order_is_unambiguous", "z_lab", "dflash", key("dflash_config.target_layer_ids", [5, 1, 3]),
        words=("[5, 1, 3]", "permuted to [2, 4, 6]", "z-lab", '"aux_layers": [2, 4, 6]'),
    ),
    case(
        "aux_order_is_unambiguous", "specforge", "native", key(IDS, [3, 1, 2]),
        words=("[3, 1, 2]", "follow the layers, [2, 3, 4]", '"aux_layers": [4, 2, 3]'),
    ),
    case(
        "aux_count_is_consistent", "num_aux_hidden_states", "native", key("num_aux_hidden_states", 5),
        words=("num_aux_hidden_states", "5", "3, the number of aux layers"),
    ),
    case(
        "aux_count_is_consistent", "num_aux_layers", "dflash", key("num_aux_layers", 2),
        words=("num_aux_layers", "2", "3, the number of aux layers"),
    ),
]
# fmt: on
