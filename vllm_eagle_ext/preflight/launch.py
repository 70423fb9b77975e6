# SPDX-License-Identifier: Apache-2.0
"""One value carries a start of an engine through the preflight, from what is asked to what is served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_eagle_ext import architectures, compat
from vllm_eagle_ext.checkpoint import Case, Inspection, TargetFacts
from vllm_eagle_ext.checkpoint.case import Setting
from vllm_eagle_ext.checkpoint.families.registry import method_drafts_in_parallel
from vllm_eagle_ext.checkpoint.rope_config import read_rope
from vllm_eagle_ext.options import Options, parse_options
from vllm_eagle_ext.preflight.draft_request import DraftRequest, read_request


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Carries what is known of a start; each step returns it with its own findings added."""

    engine_args: Any  # vLLM's EngineArgs
    target: Any  # vLLM's ModelConfig of the target
    options: Options
    request: DraftRequest | None  # None: no draft is asked for
    inspection: Inspection | None = None  # None: the draft is not looked at, or not yet
    config: Any = None  # vLLM's SpeculativeConfig, once it is built

    @property
    def case(self) -> Case | None:
        return self.inspection.case if self.inspection else None

    @property
    def schedule(self) -> list[list[int]] | None:
        """Return the schedule of K that vLLM will follow: with data parallelism it follows none."""
        given = self.config.num_speculative_tokens_per_batch_size
        if not given or self.engine_args.data_parallel_size > 1:
            return None
        return [list(step) for step in given]

    @property
    def target_text(self) -> dict[str, Any]:
        """Return the config of the target's language model."""
        text: dict[str, Any] = self.target.hf_text_config.to_dict()
        return text


def read_launch(engine_args: Any, target: Any) -> Launch:
    """Read what is asked of the engine.

    Raises:
        OptionsError: an unknown option or value.
    """
    options = parse_options(engine_args.additional_config)
    return Launch(
        engine_args=engine_args, target=target, options=options, request=read_request(engine_args)
    )


def target_facts(launch: Launch) -> TargetFacts:
    """Collect what the rules ask of the target, as vLLM has read it."""
    target, text = launch.target, launch.target_text
    folder = Path(target.model)
    return TargetFacts(
        num_layers=target.get_total_num_hidden_layers(),
        hidden_size=target.get_hidden_size(),
        vocab_size=target.get_vocab_size(),
        rope=read_rope(text),
        max_position_embeddings=text.get("max_position_embeddings"),
        folder=folder if folder.is_dir() else None,
    )


def draft_setting(launch: Launch, request: DraftRequest) -> Setting:
    """Collect what the rules ask of the engine around the draft."""
    k = request.num_speculative_tokens
    return Setting(
        method=request.method,
        k=k if isinstance(k, int) else None,
        max_model_len=launch.target.max_model_len,
        runner=compat.model_runner(drafts_in_parallel=request.parallel_drafting),
        v2_runner_needs_aux_states=compat.v2_runner_needs_aux_states(),
        parallel_drafting=request.parallel_drafting or method_drafts_in_parallel(request.method),
        registered=architectures.registered_architectures(),
        model_types=architectures.readable_model_types(),
    )
