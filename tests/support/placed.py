"""A worker extension that writes down every draft with the length of the text that it continues.

A draft is a function of that text: chunks of a prompt, cached blocks, other requests and preemptions
change the steps, not what is drafted at a length.
"""

from __future__ import annotations

import functools
from typing import Any

from tests.support.oracle_drafts import OracleDrafts


class Placed(OracleDrafts):
    """Mixed into vLLM's worker by `worker_extension_cls`; reached through `collective_rpc`."""

    def start_placing(self) -> None:
        if not hasattr(self, "placed"):
            runner = self.model_runner
            if hasattr(runner, "speculator"):
                self._place_v2(runner)
            else:
                self._place_v1(runner)
        self.placed: dict[str, dict[int, list[int]]] = {}
        self.rows: dict[str, int] = {}

    def take_placed(self) -> dict[str, dict[int, list[int]]]:
        """Per request: length of the text -> drafted ids. Drafts inside a prompt are left out."""
        return self.placed

    def take_rows(self) -> dict[str, int]:
        """Per request: drafts that were proposed, those inside a prompt among them."""
        return self.rows

    def _keep(self, request: str, length: int, row: list[int], inside_prompt: bool) -> None:
        self.rows[request] = self.rows.get(request, 0) + 1
        if not inside_prompt:
            self.placed.setdefault(request, {})[length] = row

    def _place_v1(self, runner: Any) -> None:
        propose = runner.propose_draft_token_ids

        @functools.wraps(propose)
        def placing(scheduler_output: Any, sampled: Any, *args: Any, **kwargs: Any) -> Any:
            drafts = propose(scheduler_output, sampled, *args, **kwargs)
            batch = runner.input_batch
            for i, (request, row) in enumerate(zip(batch.req_ids, drafts.tolist(), strict=False)):
                verified = len(scheduler_output.scheduled_spec_decode_tokens.get(request, ()))
                rows = scheduler_output.num_scheduled_tokens[request] - verified
                taken = sampled[i] if isinstance(sampled[i], list) else sampled[i].tolist()
                new = sum(token >= 0 for token in taken)
                length = int(batch.num_computed_tokens_cpu[i]) + rows + new
                self._keep(request, length, row, bool(runner.discard_request_mask.np[i]))
            return drafts

        runner.propose_draft_token_ids = placing

    def _place_v2(self, runner: Any) -> None:
        propose, states = runner.speculator.propose, runner.req_states

        @functools.wraps(propose)
        def placing(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
            drafts = propose(input_batch, *args, **kwargs)
            if kwargs.get("dummy_run"):
                return drafts
            num_sampled = args[4]
            places, k = input_batch.idx_mapping.tolist(), kwargs.get("num_speculative_tokens")
            for i, (request, row) in enumerate(zip(input_batch.req_ids, drafts.tolist(), strict=False)):
                length, inside_prompt = int(states.total_len.gpu[places[i]]), not int(num_sampled[i])
                self._keep(request, length, row[:k], inside_prompt)
            return drafts

        runner.speculator.propose = placing
