# SPDX-License-Identifier: Apache-2.0
"""Every place where the package touches vLLM, and when each can go.

`python -m vllm_eagle_ext.touched` prints the table for the documentation. A test compares the list with
what a process finds changed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "name wrapped",
    "name replaced",
    "registry entry",
    "class swapped",
    "method rebound",
    "attribute set",
    "import hook",
    "process hook",
]
EVERY_PROCESS = "in every process, when vLLM loads its plugins"
BUILT = "in a worker, when a supported draft or a replaying target is built"
REPLAYING = "in a worker, when a replaying target is built"


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    name: str  # what of vLLM's
    kind: Kind
    place: str  # module and function of ours
    when: str
    why: str
    remove_when: str


_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_REJECTION = "vllm.v1.sample.rejection_sampler"

TOUCHED = (
    Touch(
        name="vllm.engine.arg_utils:EngineArgs.create_speculative_config",
        kind="name wrapped",
        place="compat.install_preflight",
        when=f"{EVERY_PROCESS}; without a supported draft it only calls vLLM's own",
        why="three resolvers of a draft's layer ids disagree, and none sees the target",
        remove_when="vLLM offers a hook on the draft's config that sees target config and "
        "`additional_config` (vllm#36219 asks for a registry of proposers)",
    ),
    Touch(
        name="vllm.engine.arg_utils:EngineArgs.create_engine_config",
        kind="name wrapped",
        place="compat.install_preflight",
        when=f"{EVERY_PROCESS}; it reads what vLLM's own returns",
        why="only the whole VllmConfig tells whether an engine serves a draft rightly",
        remove_when="vLLM offers a hook on its finished config",
    ),
    Touch(
        name=f"{_RUNNER}._update_states_after_model_execute",
        kind="name wrapped",
        place="compat.install_in_worker",
        when=REPLAYING,
        why="the V1 runner has no commit hook for recurrent states",
        remove_when="vLLM's V1 runner goes",
    ),
    Touch(
        name=f"{_RUNNER}.propose_draft_token_ids",
        kind="name wrapped",
        place="compat.install_cpu_workarounds",
        when=f"{BUILT}, on a CPU",
        why="after a chunk of a prompt V1 drafts from the wrong token",
        remove_when="`prepare_next_token_ids_padded` goes by the rows of the step, or V1 goes",
    ),
    Touch(
        name=f"{_RUNNER}._sample",
        kind="name wrapped",
        place="compat.install_cpu_workarounds",
        when=f"{BUILT}, on a CPU",
        why="a step without drafts goes through the rejection sampler, which prepares what it never "
        "uses, and fails there with only top-k",
        remove_when="V1 makes no draft metadata for such a step, or V1 goes",
    ),
    Touch(
        name=f"{_REJECTION}:expand_batch_to_tokens",
        kind="name replaced",
        place="compat.install_cpu_workarounds",
        when=f"{BUILT}, on a CPU",
        why="sampled drafts are verified with settings that memory happened to hold",
        remove_when="`_expand_kernel_impl` fills what it is given",
    ),
    Touch(
        name=f"{_REJECTION}:rejection_sample",
        kind="name wrapped",
        place="compat.accept_by_lot",
        when="in workers that `bench` starts with a synthetic acceptance, on a CPU",
        why="the CPU's rejection kernels assert that there is none",
        remove_when="`_rejection_greedy_sample_kernel_impl` takes SYNTHETIC_MODE, or V1 goes",
    ),
    Touch(
        name="vllm.model_executor.models.registry:ModelRegistry.models",
        kind="registry entry",
        place="plugin.register",
        when=EVERY_PROCESS,
        why="drafters under our own and their published names, replaying targets under our own",
        remove_when="never: vLLM's documented way",
    ),
    Touch(
        name="vllm.model_executor.models.config:MODELS_CONFIG_MAP",
        kind="registry entry",
        place="architectures.use_architecture",
        when="in the front end, when the preflight chooses replay",
        why="a target under another name keeps vLLM's update of the engine's config",
        remove_when="vLLM finds that update by class",
    ),
    Touch(
        name="transformers.configuration_utils:PreTrainedConfig.get_config_dict",
        kind="method rebound",
        place="compat.reading_configs",
        when="in the front end, while vLLM builds the config of a supported draft",
        why="the config classes of transformers refuse nulls that say what a missing key says",
        remove_when="transformers takes null for a key that may be missing",
    ),
    Touch(
        name="transformers.models.auto.configuration_auto:CONFIG_MAPPING",
        kind="registry entry",
        place="families.dflash.config.register",
        when="in the front end, when a draft's model type is `dflash`",
        why="transformers knows no such model type",
        remove_when="transformers or vLLM has a config class for it",
    ),
    Touch(
        name="entry point group vllm.general_plugins",
        kind="registry entry",
        place="pyproject.toml",
        when="on installation",
        why="vLLM calls `vllm_eagle_ext.register` in each of its processes",
        remove_when="never: vLLM's documented way",
    ),
    Touch(
        name="vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn:QwenGatedDeltaNetAttention",
        kind="class swapped",
        place="replay.layer.ReplayGatedDeltaNetAttention.adopt",
        when=f"{REPLAYING}, in its layers",
        why="vLLM builds a target's layers without a hook for their class",
        remove_when="vLLM takes a replaying layer from a registry",
    ),
    Touch(
        name="vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn:QwenGatedDeltaNetAttention"
        "._forward_method",
        kind="method rebound",
        place="replay.layer.ReplayGatedDeltaNetAttention.adopt",
        when=f"{REPLAYING}, in its layers; with it `enable_fused_gdn_spec_decode` and `replay_kernels` "
        "are set",
        why="a CPU's own forward never calls `_forward_core`; fused kernels write per-token states",
        remove_when="vLLM's CPU forward goes through `qwen_gdn_attention_core`",
    ),
    Touch(
        name="a target of this package, back to vLLM's class",
        kind="class swapped",
        place="replay.targets",
        when="in a worker, while the target is built, if the self-check fails",
        why="vLLM asks the model for its model state, which for vLLM's own scheme is its own",
        remove_when="vLLM builds a target whose class is chosen in the worker",
    ),
    Touch(
        name="vllm.model_executor.models.llama:LlamaAttention, "
        "vllm.model_executor.models.qwen3:Qwen3Attention",
        kind="class swapped",
        place="drafters.gated_attention.add_gate",
        when="in a worker, when a gated draft is built, in its layers; `qkv_proj` is replaced with it",
        why="vLLM builds a drafter's layers without a hook for the attention's class",
        remove_when="vLLM's EAGLE-3 drafters take gated attention",
    ),
    Touch(
        name="embed_tokens of a drafter's inner model",
        kind="attribute set",
        place="drafters.resolved.ResolvedDraft.forward",
        when="in a worker, with LoRA on the V1 runner",
        why="V1 shares the target's embeddings together with its adapters",
        remove_when="V1's `_maybe_share_embeddings` shares them plain, or V1 goes",
    ),
    Touch(
        name="vllm.config:SpeculativeConfig.draft_model_config",
        kind="attribute set",
        place="preflight.apply.apply_spec, families.eagle3.config_writer.write, "
        "families.dflash.config_writer.write",
        when="in the front end, when a supported draft is accepted",
        why="resolved values, in its hf_config, where both runners and all drafter classes read them; "
        "an EAGLE-3 draft's max_model_len is raised by K, so that V1 drafts to the end",
        remove_when="vLLM has one resolver of a draft's config",
    ),
    Touch(
        name="vllm.config:ModelConfig",
        kind="attribute set",
        place="architectures.use_architecture, resolved_marker",
        when="in the front end, when the preflight chooses replay; a worker whose self-check fails sets "
        "the architecture back",
        why="the target's architecture becomes the replaying one, its hf_config is marked as resolved",
        remove_when="vLLM lets a plugin choose the architecture",
    ),
    Touch(
        name="vllm.engine.arg_utils:EngineArgs.scheduler_cls",
        kind="attribute set",
        place="preflight.apply_engine.keep_prompts",
        when="in the front end, with a draft on a target with recurrent states; the next start with "
        "these arguments takes it back",
        why="vLLM pads a prompt of one token with placeholder drafts, which end up in the states",
        remove_when="`Scheduler.schedule` pads only requests with computed tokens",
    ),
    Touch(
        name="vllm.engine.arg_utils:EngineArgs.disable_hybrid_kv_cache_manager",
        kind="attribute set",
        place="preflight.apply_engine.share_the_targets_group",
        when="in the front end, with `draft_window` on a target with one kind of cache; the next start "
        "with these arguments takes it back",
        why="a draft's window would cut the target's layers into groups as small as the draft",
        remove_when="vLLM groups layers without regard to the draft's",
    ),
    Touch(
        name="methods of a running model runner and speculator",
        kind="attribute set",
        place="measure.engine.probe.StepClock",
        when="in workers that `bench` and `verify` start, taken back after timing",
        why="times the parts of a step",
        remove_when="vLLM's metrics tell target and draft apart",
    ),
    Touch(
        name="sys.meta_path",
        kind="import hook",
        place="after_import.when_loaded",
        when="until the module to patch has been imported",
        why="vLLM's modules are not imported before vLLM does it",
        remove_when="no name is wrapped any more",
    ),
    Touch(
        name="logging's record factory, sys.excepthook, the environment variable EAGLE_EXT_NOTES",
        kind="process hook",
        place="failed_start.watch, failed_start.join",
        when="when an engine with a draft is configured, and in its children",
        why="a failed start tells its cause last and on one line",
        remove_when="vLLM's front end raises the error of the worker",
    ),
    Touch(
        name="prometheus_client's registry",
        kind="registry entry",
        place="metrics",
        when="when an engine with a supported draft is configured",
        why="gauges of draft and states in /metrics",
        remove_when="never: prometheus' documented way",
    ),
)


def markdown_table() -> str:
    rows = [
        (
            _code(t.name) if ":" in t.name else t.name,
            t.kind,
            _code(t.place),
            t.when,
            t.why,
            t.remove_when,
        )
        for t in TOUCHED
    ]
    header = ("What", "How", "Where", "When", "Why", "Can go when")
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


if __name__ == "__main__":
    sys.stdout.write(f"{markdown_table()}\n")
