"""An engine whose drafts vLLM trims on the device, and one whose same drafts are trimmed by hand.

`use` of `tests.support.batches.Engine`. V2 on a CPU: what vLLM asks of a device (full graphs, timings of
a step, a compiled selection) has stand-ins here; the rest is vLLM's own, its kernels under Triton's
interpreter.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch

from tests.support import joining
from tests.support.in_process import counters, logprobs_of, sampling_params

# Milliseconds by requests, and by rows: some drafts of a step are worth their row, others are not.
DRAFT_COST = [(1, 1.0), (8, 1.0)]
VERIFY_COST = [(rows, 4 + 0.3 * rows) for rows in range(1, 65)]  # vLLM steps up to the next size


def stand_in_for_a_device(set_attribute: Callable[[Any, str, Any], None]) -> None:
    from vllm.config import VllmConfig
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder
    from vllm.v1.worker.gpu import model_runner
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification

    set_attribute(VllmConfig, "_validate_adaptive_verification", lambda _: None)
    set_attribute(model_runner, "resolve_adaptive_cudagraph_mode", lambda mode, **_: mode)
    # Its kernels take the rows of each request from the device, too.
    always = AttentionCGSupport.ALWAYS
    set_attribute(CPUAttentionMetadataBuilder, "_cudagraph_support", always)
    eager = adaptive_verification._assign_draft_token_budget
    set_attribute(adaptive_verification, "_assign_draft_token_budget_compiled", eager)


def place(request: str, length: int) -> str:
    """Request and length of its text. vLLM puts something random behind the number of a request."""
    return f"{request.split('-')[0]} {length}"


class Watch:
    """What each request verified, and its committed states afterwards, by the length of its text."""

    def __init__(self, runner: Any) -> None:
        self.kept: dict[str, int] = {}
        self.states: dict[str, int] = {}
        self.widths: list[list[list[int]]] = []  # per step: rows of each request, of host and device
        self._runner = runner
        manager, state = runner.adaptive_verification, runner.model_state
        if manager is not None:
            self._reallocate, manager.reallocate_drafts = manager.reallocate_drafts, self._reallocated
        self._postprocess, state.postprocess_state = state.postprocess_state, self._postprocessed
        self._prepare, runner.prepare_inputs = runner.prepare_inputs, self._prepared

    def _reallocated(self, req_ids: list[str], idx_mapping: torch.Tensor) -> Any:
        result = self._reallocate(req_ids, idx_mapping)
        lengths = self._runner.req_states.total_len.gpu[idx_mapping].tolist()
        for request, length, logits in zip(req_ids, lengths, result[0].diff().tolist(), strict=True):
            self.kept[place(request, length)] = logits - 1
        return result

    def _prepared(self, *args: Any) -> Any:
        batch = self._prepare(*args)
        count = batch.num_reqs + 1
        host, device = batch.query_start_loc_np[:count], batch.query_start_loc[:count]
        self.widths.append([torch.from_numpy(host).diff().tolist(), device.diff().tolist()])
        return batch

    def _postprocessed(self, idx_mapping: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        metadata = next((m for m in self._runner.model_state.recoverssm._step or () if m.step), None)
        self._postprocess(idx_mapping, *args, **kwargs)
        if metadata is None:
            return
        step, states = metadata.step, self._runner.req_states
        rows = range(step.num_requests) if step.places.indices is None else step.places.indices.tolist()
        names = {index: name for name, index in states.req_id_to_index.items()}
        for number, row in enumerate(rows):
            index = int(idx_mapping[row])
            length = int(states.num_computed_tokens.gpu[index])
            self.states[place(names[index], length)] = self._committed(metadata, number)

    def _committed(self, metadata: Any, number: int) -> int:
        blocks, crc = metadata.groups.batch(metadata.step).state_blocks, 0
        layers = self._runner.vllm_config.compilation_config.static_forward_context
        for group, names in enumerate(metadata.groups.layer_names):
            for name in names:
                cache, history = layers[name].state_cache, layers[name].conv_kernel_size - 1
                block = int(blocks[group, number])
                for part in (cache.state[block], cache.conv[block][:, :history]):
                    crc = zlib.crc32(part.contiguous().view(torch.uint8).numpy(), crc)
        return crc


def trim_by_hand(scheduler: Any, kept: dict[str, int]) -> None:
    """Each request's drafts, before they are scheduled, to the number at that length of its text."""
    update = scheduler.update_draft_token_ids

    def trimmed(drafts: Any) -> None:
        update(drafts)
        for name in drafts.req_ids:
            request = scheduler.requests.get(name)
            if request is not None and request.spec_token_ids:
                del request.spec_token_ids[kept.get(place(name, request.num_tokens), 0) :]

    scheduler.update_draft_token_ids = trimmed


def serve(llm: Any, job: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """job: "by_hand" names the engine whose drafts' lengths this one takes; None: vLLM decides."""
    (runner,) = llm.collective_rpc(lambda worker: worker.model_runner)
    watch = Watch(runner)
    if job["by_hand"] is None:
        runner.adaptive_verification.set_cost_curves(DRAFT_COST, VERIFY_COST)
    else:
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        trim_by_hand(scheduler, earlier[job["by_hand"]]["kept"])
    params = [
        sampling_params({"max_tokens": length, "detokenize": False, "logprobs": 5})
        for length in job["max_tokens"]
    ]
    outputs, steps = joining.generate(llm, job["prompts"], params, job["joins"])
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "logprobs": [logprobs_of(output.outputs[0].logprobs) for output in outputs],
        "steps": steps,
        "counters": counters(llm),
        "kept": watch.kept,
        "states": watch.states,
        "widths": watch.widths,
    }
