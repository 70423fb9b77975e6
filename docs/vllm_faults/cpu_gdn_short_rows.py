"""A verified row shorter than what was accepted before breaks the history of the CPU's convolution."""

from types import SimpleNamespace

import torch
from vllm.model_executor.layers.mamba.ops.cpu.gdn_attention import _spec_forward


class Convolved(Exception):
    pass


def stop(*_: object) -> None:
    raise Convolved


dim, width, k = 2, 4, 3
layer = SimpleNamespace(
    conv1d=SimpleNamespace(weight=torch.ones(dim, 1, width), bias=None),
    activation="silu",
    rearrange_mixed_qkv=stop,  # behind the convolution
)
metadata = SimpleNamespace(
    num_spec_decodes=2,
    spec_state_indices_tensor=torch.arange(2 * (1 + k)).reshape(2, 1 + k),
    spec_query_start_loc=torch.tensor([0, 4, 5]),  # all of four rows; one, after a step that took three
    num_accepted_tokens=torch.tensor([1, 3]),
)
states = torch.zeros(8, dim, width - 1 + k)
x = torch.ones(5, dim)
try:
    _spec_forward(layer, metadata, x, None, None, states, None, width, width - 1 + k)
except Convolved:
    print("fault gone: the history of a short row was moved on")
    raise SystemExit(1) from None
except RuntimeError as error:
    print(f"fault present: {error}")
