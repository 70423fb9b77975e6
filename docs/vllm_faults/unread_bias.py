"""A bias that the module does not have is left out while weights are loaded, without a word."""

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
