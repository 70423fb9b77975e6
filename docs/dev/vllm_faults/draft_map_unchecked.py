"""A vocabulary map is not checked.

Kind: refused beforehand.
Met by: EAGLE-3 drafts with a damaged d2t, or one of target ids instead of offsets.
Symptom: The draft misses tokens or proposes wrong ones.
Cause: `model_executor/models/llama_eagle3.py`, `Eagle3LlamaForCausalLM.compute_logits` adds the map to
  0, 1, .. and writes logits at the sums: repeated ids overwrite each other, negative ones wrap around.
  The map starts as zeros (`model_executor/models/llama_eagle3.py`, `Eagle3LlamaForCausalLM.__init__`),
  and a missing one stays so.
Releases: 0.32 and 0.33 (run).
Workaround: Refused (`d2t_is_a_map`, `d2t_present_iff_reduced`, `d2t_agrees_with_t2d`); target ids are
  made offsets while they are loaded.
Can go when: `load_weights` checks the map.
"""

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
