"""Layers are captured in ascending order.

Kind: worked around.
Met by: drafts trained on states in the order of their list.
Symptom: Drafts with ids in another order draft almost at random.
Cause: `model_executor/models/interfaces.py`, `EagleModelMixin._set_aux_hidden_state_layers` sorts the
  ids and drops repeated ones, and no loader rearranges the blocks of `fc` and `fc_norm` accordingly.
Releases: 0.32 and 0.33 (run).
Workaround: While weights are loaded, `families/parts/strict_weights.py`, `StrictWeights` permutes the
  blocks where the checkpoint's format says that they follow the list (docs/drafts.md).
Can go when: VLLM captures in the order of the list, or permutes the blocks; drafts that vLLM's own
  states trained follow the layers.
"""

from vllm.model_executor.models.interfaces import EagleModelMixin

target = EagleModelMixin()
listed = (9, 2, 6)  # the order in which a trainer concatenated the states
target._set_aux_hidden_state_layers(listed)
if target.aux_hidden_state_layers == listed:
    print("fault gone: layers are captured as they are listed")
    raise SystemExit(1)
print(f"fault present: listed as {listed}, handed to fc as {target.aux_hidden_state_layers}")
