"""A request gets the thinking budget of another.

Kind: explains an observation.
Met by: requests without `thinking_token_budget` next to some with it, on V1, also without a draft.
Symptom: An end mark stands in a text that has no budget, where the budget of a request that ended before
  would have run out.
Cause: `v1/sample/thinking_budget_state.py`, `ThinkingBudgetStateHolder.sync_batch` moves a request into
  the row of one that ended, and leaves the ended one's state there if the moved one has none.
Releases: 0.32 (run).
Workaround: None, since it has nothing to do with drafts.
Remedy: give each request a budget, if only a large one.
Can go when: a moved request without a state clears its new row.
"""

from types import SimpleNamespace

import torch
from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality
from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

marks = SimpleNamespace(reasoning_start_token_ids=[1], reasoning_end_token_ids=[2])
holder = ThinkingBudgetStateHolder(marks, 2, 0, torch.device("cpu"), False)
rows = [SimpleNamespace(thinking_token_budget=budget) for budget in (5, None)]
added = [(row, asked, [1], []) for row, asked in enumerate(rows)]
holder.sync_batch(BatchUpdate(2, [], added, []))
# The first ends, and the second moves into its row, which no longer counts as removed.
holder.sync_batch(BatchUpdate(1, [], [], [(1, 0, MoveDirectionality.UNIDIRECTIONAL)]))
if holder.has_tracked_requests():
    print("fault present: the request that is left has the budget of the one that ended")
else:
    print("fault gone: no request with a budget is left")
    raise SystemExit(1)
