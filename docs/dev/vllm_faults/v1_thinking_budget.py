"""A budget of thinking ends late, or with half of its end mark.

Kind: explains an observation.
Met by: requests with `thinking_token_budget` and any draft on the V1 runner.
Symptom: Thinking ends up to K tokens late where its start mark lies in an accepted draft. An end mark
  of several tokens may be cut after the first; `</think>` is one token for most models. A budget of 0
  ends a token late after a prompt in chunks.
Cause: `v1/sample/thinking_budget_state.py`, `ThinkingBudgetStateHolder._update_think_state` sees a start
  mark in the step after it. Of an end mark it forces no token that the draft proposes, though the target
  may reject it.
Releases: 0.32 (run).
Workaround: None; V2 keeps budgets otherwise.
Remedy: VLLM_USE_V2_MODEL_RUNNER=1, or an end mark of one token.
Can go when: forced tokens do not depend on drafts.
"""

from types import SimpleNamespace

import torch
from vllm.v1.sample.logits_processor.interface import BatchUpdate
from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

BEGIN, END = [1], [2, 3]
marks = SimpleNamespace(reasoning_start_token_ids=BEGIN, reasoning_end_token_ids=END)
holder = ThinkingBudgetStateHolder(marks, 1, 2, torch.device("cpu"), False)
asked, text = SimpleNamespace(thinking_token_budget=0), []
holder.sync_batch(BatchUpdate(1, [], [(0, asked, BEGIN, text)], []))
for drafts in ([], END[1:] + [4]):  # the second draft proposes what is to be forced
    holder.update_state([text], [drafts])
    bonus, rows = torch.zeros(1, 5), torch.zeros(len(drafts), 5)
    holder.apply_to_logits(bonus, True, [drafts])
    holder.apply_to_logits(rows, False, [drafts])
    if not drafts:
        text.append(int(bonus.argmax()))
if text == END[:1] and int(rows[0].argmax()) != END[1]:
    print(f"fault present: after {text} token {END[1]} is not forced")
else:
    print("fault gone: the whole end mark is forced")
    raise SystemExit(1)
