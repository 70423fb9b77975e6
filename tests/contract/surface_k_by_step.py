"""What a K that changes by step leans on in vLLM: its schedule, and a K that `bench` holds."""

from __future__ import annotations

from tests.contract.name import Name

_SCHEDULER = "vllm.v1.core.sched.scheduler"

K_BY_STEP = (
    Name(
        _SCHEDULER,
        "Scheduler._update_after_schedule",
        "where a held K is set, once all else of the step is decided",
        parameters=("self", "scheduler_output"),
    ),
    Name(
        _SCHEDULER,
        "Scheduler.schedule",
        "vLLM's own choice of K, which a held one comes behind; with a schedule no request is padded",
        contains=(
            "self.dynamic_sd_lookup is None",
            "num_spec_tokens_to_schedule=num_spec_tokens_to_schedule",
            "self._update_after_schedule(scheduler_output)",
        ),
    ),
    Name(
        "vllm.v1.core.sched.async_scheduler",
        "AsyncScheduler._update_after_schedule",
        "makes placeholders for as many drafts as the step's K",
        parameters=("self", "scheduler_output"),
        contains=("[-1] * scheduler_output.num_spec_tokens_to_schedule",),
    ),
    Name(
        "vllm.v1.core.sched.output",
        "SchedulerOutput",
        "carries K to both runners",
        contains=("num_spec_tokens_to_schedule: int",),
    ),
    Name(
        "vllm.config.scheduler",
        "SchedulerConfig.get_scheduler_cls",
        "resolves the function that builds a scheduler that holds K",
        contains=("resolve_obj_by_qualname(self.scheduler_cls)",),
    ),
    Name(
        "vllm.v1.engine.core",
        "EngineCore.__init__",
        "calls what the name stands for",
        contains=("get_scheduler_cls()", "Scheduler(vllm_config=vllm_config"),
    ),
    Name(
        "vllm.v1.spec_decode.dynamic.utils",
        "build_dynamic_sd_schedule_lookup",
        "finds the lengths to capture graphs for in the schedule",
        parameters=(
            "num_speculative_tokens_per_batch_size",
            "vllm_max_batch_size",
            "vllm_num_speculative_tokens",
        ),
    ),
    Name(
        "vllm.v1.worker.gpu_model_runner",
        "GPUModelRunner.propose_draft_token_ids",
        "V1 drafts as many as the step says",
        contains=("scheduler_output.num_spec_tokens_to_schedule",),
    ),
    Name(
        "vllm.v1.worker.gpu.model_runner",
        "GPUModelRunner.sample_tokens",
        "V2 does, and hands over no more",
        contains=("num_speculative_tokens=num_spec_tokens",),
    ),
    Name(
        "vllm.v1.worker.gpu_model_runner",
        "GPUModelRunner._sample",
        "a step without drafts on a CPU is handed to the plain sampler",
        parameters=("self", "logits", "spec_decode_metadata"),
        contains=("if spec_decode_metadata is None:", "return self.sampler("),
    ),
    Name(
        "vllm.v1.sample.thinking_budget_state",
        "ThinkingBudgetStateHolder._apply_forcing_to_logits",
        "one row for each request in a step without drafts",
        contains=("if self.in_spec_mode:", "cumulative_total += 1"),
    ),
    Name(
        "vllm.v1.spec_decode.metadata",
        "SpecDecodeMetadata",
        "how many drafts the longest request of a step has",
        contains=("self.max_spec_len = max(self.num_draft_tokens)",),
    ),
)
