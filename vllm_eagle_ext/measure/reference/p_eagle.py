# SPDX-License-Identifier: Apache-2.0
"""P-EAGLE: EAGLE-3's layers, and all K tokens from one causal pass.

The first row is EAGLE-3's own. The others, at the positions after it, hold what is known beforehand:
the mask token, and fuse(mask_hidden) in place of the target's states.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vllm_eagle_ext.measure.reference.eagle3 import Eagle3Reference


@dataclass(frozen=True)
class PEagleReference(Eagle3Reference):
    mask_token: int = 0

    def next_inputs(self, token: int, feedback: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Give the mask token's inputs, whatever the row before has drafted."""
        hidden = self.weights["mask_hidden"].flatten()  # [n * Ht]
        states = sum(name.startswith("fc_norm.") for name in self.weights) or 1
        return self.mask_token, self.fuse(hidden.chunk(states))
