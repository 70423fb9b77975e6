# SPDX-License-Identifier: Apache-2.0
"""Tells what a step verified of each request's draft, and where a grammar ended one.

Without async scheduling vLLM's scheduler hands a draft to the request's grammar before it is scheduled
and keeps the tokens in front of the first that the grammar does not allow. That token was drafted, and
the target, which samples by the same grammar, would have rejected it: once all tokens in front of it are
accepted, it counts as reached and rejected. Those behind it were never reached. Without it, positions
that a grammar rejects would be observed in other requests alone, and acceptance be overrated.

With async scheduling the refused tokens stay in the step as -1, which no target token equals, so that
there the rejection is in the tokens that were sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class VerifiedDraft:
    """Describes one request's draft in one step."""

    verified: int  # tokens that the target verified
    is_cut: bool = False  # by the grammar, behind them

    def outcome(self, accepted: int) -> tuple[int, int]:
        """Return how many tokens were judged, by the target or the grammar, and how many accepted."""
        return self.verified + self.is_cut, accepted


class VerifiedDrafts:
    """Follows drafts from the step that made them to the one that verifies them."""

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}  # by the grammar, of each request whose draft it cut
        self._length = 0  # K of the last step that ran

    def note_cuts(self, drafts: Any, requests: Mapping[str, Any]) -> None:
        """Compare what was drafted with what the scheduler kept of it.

        Args:
            drafts: vLLM's DraftTokenIds.
            requests: by name, after the scheduler took the drafts.
        """
        for name, tokens in zip(drafts.req_ids, drafts.draft_token_ids, strict=True):
            request = requests.get(name)
            if request is None or not request.use_structured_output or request.is_prefill_chunk:
                continue
            drafted = sum(token >= 0 for token in tokens)  # V2 pads with -1
            kept = request.spec_token_ids
            # Behind a stop token the request ends, and no position is reached.
            ends = bool(kept) and kept[-1] in request.sampling_params.all_stop_token_ids
            if len(kept) < drafted and not ends:
                self._kept[name] = len(kept)

    def take(self, step: Any) -> tuple[int, dict[str, VerifiedDraft]]:
        """Return K of the step that drafted, and the drafts that this step verified or a grammar ended.

        Steps are to be handed over in the order in which they ran.

        Args:
            step: vLLM's SchedulerOutput.
        """
        for name in (*step.finished_req_ids, *(step.preempted_req_ids or ())):
            self._kept.pop(name, None)
        found, verified = {}, step.scheduled_spec_decode_tokens
        for name in step.num_scheduled_tokens:
            count = len(verified.get(name, ()))
            # With fewer than the grammar kept, the scheduler cut the draft in front of its cut.
            is_cut = self._kept.pop(name, None) == count
            if count or is_cut:
                found[name] = VerifiedDraft(count, is_cut)
        length = self._length
        if step.num_scheduled_tokens:
            self._length = step.num_spec_tokens_to_schedule
        return length, found
