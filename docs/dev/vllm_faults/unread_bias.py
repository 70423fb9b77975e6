"""Biases that nothing reads are dropped.

Kind: worked around.
Met by: drafts with more biases than their config says.
Symptom: A draft with biases loads silently and drafts worse.
Cause: `model_executor/models/utils.py`, `AutoWeightsLoader.load_weights` ignores every unexpected
  `.bias`, for the sake of GPTQ models.
Releases: 0.32 and 0.33 (run).
Workaround: Refused beforehand (`tensors_are_expected`) and while weights are loaded; with `strict:
  false` a warning names them.
Can go when: Unexpected biases are refused in models that are not quantised.
"""

import torch
from vllm.model_executor.models.utils import AutoWeightsLoader

module = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))
weights = {"0.weight": torch.ones(2, 2), "0.bias": torch.ones(2)}
try:
    loaded = AutoWeightsLoader(module).load_weights(weights.items())
except ValueError as error:
    print(f"fault gone: {error}")
    raise SystemExit(1) from None
print(f"fault present: of {sorted(weights)} only {sorted(loaded)} is loaded, without a word")
