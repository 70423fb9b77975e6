"""A worker extension that writes down what the drafter was handed and what it drafted."""

from __future__ import annotations

import functools
from typing import Any


class Recorder:
    """Mixed into vLLM's worker by `worker_extension_cls`; reached through `collective_rpc`."""

    model_runner: Any

    def start_recording(self) -> None:
        if not hasattr(self, "recorded_drafts"):
            self._wrap()
        self.recorded_drafts: dict[str, list[list[int]]] = {}
        self.recorded_states: list[Any] = []

    def take_drafts(self) -> dict[str, list[list[int]]]:
        return self.recorded_drafts

    def take_states(self) -> list[list[float]]:
        """What the first draft pass fused: [tokens, n * Ht], columns in the order of capture."""
        return self.recorded_states[0].float().tolist()

    def _wrap(self) -> None:
        runner = self.model_runner
        is_v2 = hasattr(runner, "speculator")
        drafter = runner.speculator if is_v2 else runner.drafter
        self._wrap_combine(drafter.model)
        if is_v2:
            self._wrap_propose(drafter, "propose", lambda args: args[0].req_ids)
        else:
            self._wrap_propose(runner, "propose_draft_token_ids", lambda _: runner.input_batch.req_ids)

    def _wrap_combine(self, model: Any) -> None:
        combine = model.combine_hidden_states

        @functools.wraps(combine)
        def recording(hidden_states: Any) -> Any:
            self.recorded_states.append(hidden_states.clone())
            return combine(hidden_states)

        model.combine_hidden_states = recording

    def _wrap_propose(self, owner: Any, name: str, request_ids: Any) -> None:
        propose = getattr(owner, name)

        @functools.wraps(propose)
        def recording(*args: Any, **kwargs: Any) -> Any:
            drafts = propose(*args, **kwargs)
            for request, row in zip(request_ids(args), drafts.tolist(), strict=False):
                self.recorded_drafts.setdefault(request, []).append(row)
            return drafts

        setattr(owner, name, recording)
