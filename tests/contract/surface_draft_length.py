"""What `draft_length: "auto"` leans on in vLLM's scheduler, its config and its runners."""

from __future__ import annotations

from tests.contract.name import Name

_SCHEDULER = "vllm.v1.core.sched.scheduler"
_V1_RUNNER = "vllm.v1.worker.gpu_model_runner"

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
    Name(
        _V1_RUNNER,
        "GPUModelRunner.propose_draft_token_ids",
        "a sleeping draft finds the aux states sixth and its group's metadata eighth",
        parameters=(
            "self",
            "scheduler_output",
            "sampled_token_ids",
            "sampling_metadata",
            "hidden_states",
            "sample_hidden_states",
            "aux_hidden_states",
            "spec_decode_metadata",
            "common_attn_metadata",
            "slot_mappings",
        ),
    ),  # fmt: skip
    Name(
        _V1_RUNNER,
        "GPUModelRunner._get_positions",
        "positions of the rows that a sleeping draft keeps",
        parameters=("self", "num_tokens"),
    ),
    Name(
        _V1_RUNNER,
        "GPUModelRunner._update_states",
        "a request's list of blocks grows in place, and is another one once it is resumed",
        contains=(
            "self.requests.pop(req_id, None)",
            "block_ids.extend(new_ids)",
            "req_state.block_ids = new_block_ids",
        ),
    ),
    Name(
        _V1_RUNNER,
        "GPUModelRunner",
        "with prefix caching a draft sleeps where there is one KV-cache group",
        contains=(
            "self.cache_config = vllm_config.cache_config",
            "self.kv_cache_config.kv_cache_groups",
        ),
    ),
    Name(
        "vllm.v1.spec_decode.llm_base_proposer",
        "SpecDecodeBaseProposer.initialize_attn_backend",
        "the KV-cache group of the draft's layers, and its window",
        contains=("self.draft_attn_groups", "kv_cache_spec=layer_kv_cache_spec"),
    ),
    Name(
        "vllm.utils.torch_utils",
        "async_tensor_h2d",
        "which rows are written, without waiting for the device",
        accepts=("data", "device", "dtype"),
    ),
)
