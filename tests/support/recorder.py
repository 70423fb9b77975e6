"""A worker extension that writes down what the drafter was handed and what it drafted."""

from __future__ import annotations

import functools
import os
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
        """Per request, in order. Drafts inside a prompt are left out: how often a prompt is cut depends
        on the other requests that are there."""
        return self.recorded_drafts

    def identity(self) -> dict[str, Any]:
        """What reached this worker's process."""
        import vllm_eagle_ext

        runner = self.model_runner
        drafter = runner.speculator if hasattr(runner, "speculator") else runner.drafter
        config = runner.vllm_config
        draft = config.speculative_config.draft_model_config.hf_config
        return {
            "pid": os.getpid(),
            "host": os.environ.get("VLLM_HOST_IP"),
            "ray": "RAY_JOB_ID" in os.environ,
            "replays": type(runner.get_model()).__module__,
            "drafter": type(drafter.model).__name__,
            "layer_ids": list(getattr(draft, "eagle_aux_hidden_state_layer_ids", None) or ()),
            "options": (config.additional_config or {}).get("eagle_ext"),
            "marker": getattr(draft, "eagle_ext", {}).get("version"),  # none of a class of vLLM's
            "version": vllm_eagle_ext.__version__,
        }

    def take_states(self) -> list[list[float]]:
        """What the first draft pass fused: [tokens, n * Ht], columns in the order of capture."""
        return self.recorded_states[0].float().tolist()

    def _wrap(self) -> None:
        runner = self.model_runner
        is_v2 = hasattr(runner, "speculator")
        drafter = runner.speculator if is_v2 else runner.drafter
        self._wrap_combine(drafter.model)
        if is_v2:
            self._wrap_propose(drafter, "propose", lambda args: (args[0].req_ids, args[5] == 0))
        else:
            self._wrap_propose(
                runner,
                "propose_draft_token_ids",
                lambda _: (runner.input_batch.req_ids, runner.discard_request_mask.np),
            )

    def _wrap_combine(self, model: Any) -> None:
        combine = model.combine_hidden_states

        @functools.wraps(combine)
        def recording(hidden_states: Any) -> Any:
            self.recorded_states.append(hidden_states.clone())
            return combine(hidden_states)

        model.combine_hidden_states = recording

    def _wrap_propose(self, owner: Any, name: str, requests_of: Any) -> None:
        """requests_of: the call's arguments -> ids, and whether their prompts go on."""
        propose = getattr(owner, name)

        @functools.wraps(propose)
        def recording(*args: Any, **kwargs: Any) -> Any:
            drafts = propose(*args, **kwargs)
            requests, inside_prompt = requests_of(args)
            rows = zip(requests, inside_prompt.tolist(), drafts.tolist(), strict=False)
            for request, inside, row in rows:
                if not inside:
                    self.recorded_drafts.setdefault(request, []).append(row)
            return drafts

        setattr(owner, name, recording)
