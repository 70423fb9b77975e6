# SPDX-License-Identifier: Apache-2.0
"""Writes what was decided to where both of vLLM's runners and all drafter classes read it: of the draft,
and of the engine its prefix cache, KV-cache groups, scheduler and recurrent states.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from pkgutil import resolve_name
from typing import Any

from vllm_eagle_ext import compat
from vllm_eagle_ext.draft import Case
from vllm_eagle_ext.draft.expected_tensors import belongs_to_quantised
from vllm_eagle_ext.draft.layer_ids import vllm_keys
from vllm_eagle_ext.draft.quantisation import AS_EXPORTED, named_for_vllm
from vllm_eagle_ext.errors import UnsupportedDraftError
from vllm_eagle_ext.families.parts.gate_rows import GatePlan
from vllm_eagle_ext.families.parts.strict_weights import LoadingPlan
from vllm_eagle_ext.families.resolved_marker import write_marker
from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
from vllm_eagle_ext.options import Options
from vllm_eagle_ext.start import metrics
from vllm_eagle_ext.start.ask import asked_speculative
from vllm_eagle_ext.start.messages import tell_state
from vllm_eagle_ext.start.rules.speculative import SCHEDULER
from vllm_eagle_ext.start.rules.states import choose_scheme, needs_replay, vllm_replays
from vllm_eagle_ext.start.rules.vllm_config import schedule_of
from vllm_eagle_ext.start.vllm_says import words_of

logger = get_logger(__name__)

_SECTIONS = ("mrope_section", "mrope_interleaved", "xdrope_section")


def apply_spec(config: Any, case: Case) -> None:
    """Write the decisions of a supported draft into its config.

    Args:
        config: vLLM's SpeculativeConfig, whose draft config is changed in place.
    """
    # Sizes, and the layers that are read.
    hf_config = config.draft_model_config.hf_config
    spec = case.spec
    hf_config.target_hidden_size = spec.target_hidden_size
    hf_config.draft_vocab_size = spec.head_rows
    if case.target.padding and not spec.drafter.uses_vllm_class:
        hf_config.vocab_size = case.target.rows  # the width of its logits, which samplers go by
    if getattr(hf_config, "hidden_act", None) is None:  # the speculators config class has no defaults
        hf_config.hidden_act = "silu"
    if spec.fuses_aux_states:
        for key, value in vllm_keys(spec.aux_layers).items():
            setattr(hf_config, key, value)
    # The draft's own depth where its file states the target's, without that one's layer types.
    if hf_config.num_hidden_layers != spec.num_layers:
        hf_config.num_hidden_layers = spec.num_layers
        hf_config.layer_types = ["full_attention"] * spec.num_layers
    # transformers drops the window where use_sliding_window is not set.
    if windows := [layer.window for layer in spec.layers if layer.window]:
        hf_config.sliding_window = windows[0]
    if spec.draft_window is not None:
        hf_config.layer_types = ["sliding_attention"] * spec.num_layers
        # V1 drafts nothing where a text is longer than the draft's own.
        config.draft_model_config.max_model_len = config.target_model_config.max_model_len
    # What vLLM reads of its quantisation, its positions and its family.
    if spec.quantisation is not None:
        hf_config.quantization_config = named_for_vllm(case)
    if config.parallel_drafting:
        _drop_rope_sections(hf_config)
    resolve_name(spec.family.config_writer)(config, case)
    if not spec.drafter.uses_vllm_class:  # vLLM's own classes ask for no marker
        write_marker(hf_config, weights=asdict(loading_plan(case)))
    hf_config.architectures = [spec.drafter.architecture]
    config.update_arch_()


def require_quantisation(config: Any, case: Case) -> None:
    """Let vLLM read the draft's quantisation, which it does after it has loaded the target.

    Raises:
        UnsupportedDraftError: vLLM cannot, with its words.
    """
    if case.spec.quantisation is None:
        return
    from vllm.config import VllmConfig

    try:
        VllmConfig.get_quantization_config(config.draft_model_config, config.draft_load_config)
    except Exception as error:
        words, keys = words_of(error)
        raise UnsupportedDraftError(
            field=f"{'.'.join(keys) or 'quant_method'} of the draft's quantization_config",
            value=case.spec.quantisation, allowed=f"what vLLM reads: {words}",
            remedy=AS_EXPORTED,
        ) from error  # fmt: skip


def _drop_rope_sections(hf_config: Any) -> None:
    """Drop the sections of M-RoPE, which V1 refuses in drafts that make all tokens in one pass. V1
    drafts only for text, where all sections have the same position, and hands such drafts the first.
    REMOVE WHEN V1's `_raise_if_mrope` goes, or V1 goes."""
    for name in ("rope_parameters", "rope_scaling"):
        block = getattr(hf_config, name, None)
        if isinstance(block, dict):
            kept = {key: value for key, value in block.items() if key not in _SECTIONS}
            setattr(hf_config, name, kept)


def loading_plan(case: Case) -> LoadingPlan:
    """List the tensors to load: by the safetensors headers, else by what the config promises."""
    # The headers say what is there; without them some tensors may be missing.
    table, gate, heads = case.expected, case.spec.gate, case.spec.heads
    loaded = {name: expected for name, expected in table.items() if name != "t2d"}
    if case.has_tensors:
        required = {
            name: [list(header.shape)]
            for name, header in case.files.tensors.items()
            if name in loaded or belongs_to_quantised(case.spec, name, table)
        }
        optional: dict[str, list[list[int]]] = {}
    else:
        shareable = case.spec.hidden_size == case.spec.target_hidden_size
        own = () if shareable else ("embed_tokens.weight", "lm_head.weight")
        shapes = {name: [list(s) for s in expected.shapes] for name, expected in loaded.items()}
        optional = {n: shapes[n] for n, e in loaded.items() if e.optional and n not in own}
        required = {n: allowed for n, allowed in shapes.items() if n not in optional}
    return LoadingPlan(
        required=required,
        optional=optional,
        order=list(case.spec.aux_layers.order),
        gate=None
        if gate is None
        else asdict(GatePlan(gate.kind, gate.module, gate.layout, heads.query, heads.dim)),
        d2t_kind=case.spec.vocabulary.map_kind,
        target_vocab_size=case.target.vocab_size,
        embedding_rows=case.target.rows,
        drop_unexpected=not case.request.options.strict,
        kept_ids=None if case.spec.kept_ids is None else list(case.spec.kept_ids),
    )


_MARK = "_eagle_ext_set"  # field of EngineArgs -> what it was, and what it was set to
_DROP, _ONE_MANAGER = "disable_eagle_block_drop", "disable_hybrid_kv_cache_manager"
_KEPT_BLOCK = (
    "Prefix cache: a hit keeps its last block, because {title} drafts read no token after it. vLLM "
    "drops it for drafts that do; {key} false in the speculative config drops it here."
)
_ONE_GROUP = (
    "KV cache: draft and target share one group and keep all tokens. The draft attends only to the last "
    "{window}. Apart, vLLM would lose hits in the prefix cache, and cut the target's layers into small "
    "groups. --no-disable-hybrid-kv-cache-manager keeps them apart."
)
_OUR_SCHEDULER = (
    "Scheduler: vLLM's own, but a prompt of one token gets no placeholder drafts, with which its text "
    "would be wrong. vLLM's warning of a custom scheduler class means this one."
)


def take_back(engine_args: Any) -> None:
    """Give each field that an earlier start set what it had, unless it was set anew since."""
    for field, (was, value) in vars(engine_args).pop(_MARK, {}).items():
        if getattr(engine_args, field) == value:
            setattr(engine_args, field, was)


def _set_for_a_start(engine_args: Any, field: str, value: object) -> None:
    """Set a field, which vLLM reads after it has built the SpeculativeConfig.

    A start may take these steps twice: a second wrapper, of another plugin, hides the first.
    """
    if getattr(engine_args, field) == value:
        return
    was = {**getattr(engine_args, _MARK, {}), field: (getattr(engine_args, field), value)}
    setattr(engine_args, _MARK, was)
    setattr(engine_args, field, value)


def keep_last_block(engine_args: Any, config: Any, case: Case) -> None:
    """Turn off, in vLLM's SpeculativeConfig, its drop of a hit's last block where a draft needs none.

    The last row of a block of an EAGLE-3 draft was made with the token after the block, which may be
    another one in the text that hits. vLLM 0.32 drops it for DFlash drafts too; 0.33 does not.
    """
    if not case.spec.family.caches_target_states or not hasattr(config, _DROP):
        return
    # 0.33 asks another method, which knows DFlash.
    drops = getattr(config, "needs_eagle_block_drop", None) or config.use_eagle_block_drop
    if not drops() or _DROP in asked_speculative(engine_args):
        return
    config.disable_eagle_block_drop = True
    if engine_args.enable_prefix_caching is not False:
        log_once(logger, logging.INFO, _KEPT_BLOCK.format(title=case.spec.title, key=_DROP))


def share_the_targets_group(engine_args: Any, target: Any, case: Case) -> None:
    """Turn vLLM's manager of mixed caches off where only the draft's window would make them mixed.

    A target with windows or recurrent states of its own needs that manager.
    """
    if case.spec.draft_window is None or target.is_hybrid:
        return
    windowed = "sliding_attention" in (target.hf_text_config.to_dict().get("layer_types") or ())
    has_windows = windowed or bool(target.get_sliding_window()) or bool(target.attention_chunk_size)
    if has_windows or getattr(engine_args, _ONE_MANAGER) is not None:
        return
    _set_for_a_start(engine_args, _ONE_MANAGER, True)
    log_once(logger, logging.INFO, _ONE_GROUP.format(window=case.spec.draft_window))


def keep_prompts(engine_args: Any, half_built: Any) -> None:
    """Name the scheduler that keeps prompts of one token right next to recurrent states.

    With a schedule of K vLLM pads no request.
    """
    is_free = engine_args.scheduler_cls in (None, SCHEDULER)
    if half_built.model_config.is_hybrid and is_free and schedule_of(half_built) is None:
        _set_for_a_start(engine_args, "scheduler_cls", SCHEDULER)
        log_once(logger, logging.INFO, _OUR_SCHEDULER)


def apply_hybrid_state(engine_args: Any, half_built: Any, options: Options) -> None:
    """Choose how recurrent states are kept, once the draft is settled, and give the target the class
    that does it. A target without gated delta nets stays as it is."""
    target = half_built.model_config
    architecture = target.architecture
    if architecture not in REPLAYING_TARGETS:
        return
    if vllm_replays(half_built):
        left = "left to vLLM, which replays it (--use-replayssm)."
        log_once(logger, logging.INFO, f"Recurrent state of {architecture}: {left}")
        return
    choice = choose_scheme(half_built, options)
    tell_state(str(choice))
    log_once(logger, logging.INFO, f"Recurrent state of {architecture}: {choice}.")
    metrics.publish_state(engine_args, target, choice)
    if choice.replays:
        write_marker(
            target.hf_config,
            must_replay=options.hybrid_state == "replay" or needs_replay(half_built),
            replay_kernels=options.replay_kernels,
        )
        compat.use_architecture(target, REPLAYING_TARGETS[architecture])
