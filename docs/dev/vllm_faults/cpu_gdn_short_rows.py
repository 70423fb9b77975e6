"""Short rows break the convolution's history.

Kind: worked around.
Met by: hybrid targets on a CPU, in steps in which a request has fewer than K drafts.
Symptom: Fewer rows than were accepted before end the engine (`The size of tensor a must match ..`);
  others misplace the history silently. Such rows come with ngram drafts, structured output and the end
  of the context.
Cause: `model_executor/layers/mamba/ops/cpu/gdn_attention.py`, `_spec_forward` moves the conv state as
  if each row of the batch had 1 + K tokens.
Releases: 0.32 (run); fixed in 0.33 (run).
Workaround: `replay/on_cpu.py`, `CpuOps.convolve` pads the rows. With one state block per draft token
  the target is vLLM's own, and the fault stays: a start warns, and refuses a schedule of K
  (`start/rules/states.py`, `short_rows_are_served` and `state_can_be_kept`).
Remedy: replay.
Can go when: 0.32 is no longer supported.
"""

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
    rearrange_mixed_qkv=stop,  # called after the convolution
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
