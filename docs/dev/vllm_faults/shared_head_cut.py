"""A missing head is replaced by the first rows of the target's.

Kind: refused beforehand.
Met by: drafts of a reduced vocabulary without lm_head.
Symptom: The draft proposes only the vocabulary's first tokens. It does so by other tokens' logits.
Cause: `v1/spec_decode/llm_base_proposer.py`, `SpecDecodeBaseProposer._maybe_share_lm_head` does not
  compare the widths, and `model_executor/layers/logits_processor.py`, `LogitsProcessor._get_logits`
  cuts the logits to the draft's vocabulary.
Releases: 0.32 and 0.33 (run).
Workaround: Refused (`head_is_present`).
Can go when: The head is shared only where the vocabularies are equally large.
"""

from types import SimpleNamespace

import torch
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

draft = SimpleNamespace(
    has_own_lm_head=False, lm_head=torch.nn.Linear(4, 6, bias=False), model=SimpleNamespace()
)
target = SimpleNamespace(lm_head=torch.nn.Linear(4, 64, bias=False), model=SimpleNamespace())
proposer = SimpleNamespace(
    model=draft, use_local_argmax_reduction=False, vllm_config=SimpleNamespace(speculative_config=None)
)
try:
    SpecDecodeBaseProposer._maybe_share_lm_head(proposer, target)
except ValueError as error:
    print(f"fault gone: {error}")
    raise SystemExit(1) from None
if draft.lm_head is not target.lm_head:
    print("fault gone: the head is not shared")
    raise SystemExit(1)
print(f"fault present: a draft of 6 tokens reads a head of {len(draft.lm_head.weight)} rows")
