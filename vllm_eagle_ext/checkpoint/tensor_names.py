# SPDX-License-Identifier: Apache-2.0
"""One name per tensor, whatever the publisher's prefix or spelling."""

from __future__ import annotations

# Published spelling -> canonical one. `model.` and `midlayer.` stand for nothing and for layer 0.
_PREFIXES = (
    ("model.", ""),
    ("midlayer.", "layers.0."),
    ("encoder.output_norm_enc.", "hidden_norm."),
    ("encoder.fc.", "fc."),
    ("aux_norm_low.", "fc_norm.0."),
    ("aux_norm_mid.", "fc_norm.1."),
    ("aux_norm_high.", "fc_norm.2."),
)
_WHOLE = {"draft_id_to_target_id": "d2t"}

# Constants that some exporters write; every engine computes them itself.
COMPUTED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")

# These hold the weights of a module, quantised or not; scales and zero points are no weights.
HOLDS_WEIGHTS = ("weight", "weight_packed", "qweight")


def canonical_name(name: str) -> str:
    for published, canonical in _PREFIXES:
        if name.startswith(published):
            name = canonical + name.removeprefix(published)
    return _WHOLE.get(name, name)
