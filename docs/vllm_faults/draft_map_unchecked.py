"""A `d2t` with repeated or negative target ids is used as it is: logits are lost or wrap around."""

from types import SimpleNamespace

import torch
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

drafter = SimpleNamespace(
    logits_processor=lambda head, states: states,
    lm_head=None,
    config=SimpleNamespace(vocab_size=8, draft_vocab_size=4),
    draft_id_to_target_id=torch.tensor([3, 2, 1, -4]),  # target ids 3, 3, 3 and -1
)
try:
    logits = Eagle3LlamaForCausalLM.compute_logits(drafter, torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
except (ValueError, IndexError) as error:
    print(f"fault gone: {error}")
    raise SystemExit(1) from None
print(f"fault present: four draft tokens become target ids {logits.isfinite().nonzero()[:, 1].tolist()}")
