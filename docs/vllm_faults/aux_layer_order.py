"""Layers are captured in ascending order; nothing rearranges the blocks of `fc` that read them."""

from vllm.model_executor.models.interfaces import EagleModelMixin

target = EagleModelMixin()
listed = (9, 2, 6)  # the order in which a trainer concatenated the states
target._set_aux_hidden_state_layers(listed)
if target.aux_hidden_state_layers == listed:
    print("fault gone: layers are captured as they are listed")
    raise SystemExit(1)
print(f"fault present: listed as {listed}, handed to fc as {target.aux_hidden_state_layers}")
