"""What `draft_length: "auto"` leans on in vLLM's scheduler, its config and its runners."""

from __future__ import annotations

from tests.contract.name import Name

_SCHEDULER = "vllm.v1.core.sched.scheduler"

DRAFT_LENGTH = (
    Name(
        _SCHEDULER,
        "Scheduler._update_after_schedule",
        "where a step is given its K, once all else of it is decided",
        parameters=("self", "scheduler_output"),
        contains=("request.num_computed_tokens += num_scheduled_token",),
    ),
    Name(
        _SCHEDULER,
        "Scheduler.update_from_output",
        "where a step is timed and its drafts are counted",
        parameters=("self", "scheduler_output", "model_runner_output"),
        contains=("scheduler_output.scheduled_spec_decode_tokens.get(req_id)",),
    ),
    Name(
        _SCHEDULER,
        "Scheduler.update_draft_token_ids",
        "where a grammar cuts drafts; what is left of one are its request's spec_token_ids",
        parameters=("self", "draft_token_ids"),
        contains=("request.spec_token_ids = self.structured_output_manager.validate_tokens(",),
    ),
    Name(
        _SCHEDULER,
        "Scheduler.update_draft_token_ids_in_output",
        "with async scheduling the tokens that a grammar refuses stay in the step as -1",
        contains=("spec_token_ids.extend([-1] * num_invalid_tokens)",),
    ),
    Name(
        _SCHEDULER,
        "Scheduler.schedule",
        "vLLM's own choice of K, which ours comes behind; with a schedule no request is padded to K",
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
        "resolves the function that chooses between our two schedulers",
        contains=("resolve_obj_by_qualname(self.scheduler_cls)",),
    ),
    Name(
        "vllm.engine.arg_utils",
        "EngineArgs.create_engine_config",
        "reads the scheduler's name, which the preflight sets while the speculative config is built",
        contains=("scheduler_cls=self.scheduler_cls", "self.create_speculative_config("),
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
)
