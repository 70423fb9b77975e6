# SPDX-License-Identifier: Apache-2.0
"""What one record says of a drafter family.

Hooks that need vLLM or torch are named as "module:function", so that a record can be read without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_eagle_ext.drafter_classes import Backbone, Drafter

if TYPE_CHECKING:
    from vllm_eagle_ext.checkpoint.attention import LayerAttention
    from vllm_eagle_ext.checkpoint.draft_config import DraftConfig, Format
    from vllm_eagle_ext.checkpoint.expected_tensors import Expected
    from vllm_eagle_ext.checkpoint.findings import Rule
    from vllm_eagle_ext.checkpoint.spec import DraftSpec


@dataclass(frozen=True, slots=True)
class KeyEffect:
    """What a key of config.json does to a draft that was trained with it."""

    effect: str
    neutral: tuple[Any, ...]  # values that change nothing
    by_layer: bool = False  # of an entry per layer, each neutral

    def is_neutral(self, value: Any) -> bool:
        """Say whether the draft computes the same without the key."""
        if self.by_layer and isinstance(value, list):
            return all(each in self.neutral for each in value)
        return value in self.neutral


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What tells the families of one drafter class apart."""

    architecture: str = ""  # as published
    speculators_type: object = None
    has_mask_hidden: bool = False
    has_gate: bool = False
    norm_output: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IdConvention:
    """How aux layer ids are read that are nested in a block of config.json."""

    place: str  # dotted key
    also: tuple[str, ...] = ()  # further ones
    is_required: bool = False  # a draft that names no layers is refused; else EAGLE-3's are taken
    names_inputs_without: int | None = None  # nested ids without this one name inputs, not outputs

    @property
    def places(self) -> tuple[str, ...]:
        return (self.place, *self.also)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """All that is particular to one drafter family.

    A draft belongs to the first registered family that has its drafter class and whose
    `is_shown_by` holds.
    """

    name: str  # in JSON and in docs/published_drafts.md
    title: str  # for readers
    drafters: tuple[Drafter, ...]
    is_shown_by: Callable[[Evidence], bool] = lambda evidence: True
    layer_ids: IdConvention
    # What the drafter is built of, and its rules next to those for all families.
    read_layers: Callable[[DraftConfig, Backbone, Format], tuple[LayerAttention, ...]]
    tensors: Callable[[DraftSpec, DraftConfig, int], dict[str, Expected]]
    rules: tuple[Rule, ...] = ()
    own_keys: Mapping[str, KeyEffect] = field(default_factory=dict)  # that only it computes with
    # Values of keys that say what the family is, and others are refused for.
    says_of_itself: Mapping[str, Any] = field(default_factory=dict)
    scales_logits: frozenset[str] = frozenset()  # keys that rescale logits, which it computes
    plain_modules: tuple[str, ...] = ()  # that its class builds without quantisation
    asks_for_windows: Callable[[DraftConfig], bool] = lambda config: False  # next to layer_types
    # How it drafts.
    has_flags: bool = False  # EAGLE-3's, on norms and on what is fed back
    runs_without_aux_states: bool = False
    drafts_in_parallel: bool = False  # all tokens in one pass
    caches_target_states: bool = False  # keys and values follow only from these, in all layers
    fills_a_block: bool = False  # that it was trained on; vLLM drafts so without `parallel_drafting`
    samples_the_anchor: Callable[[DraftConfig, Format], bool] = lambda config, format_: False
    runs_on_v2_only: bool = False
    mixes_windows_on_v2_only: bool = False
    widens_inputs: bool = False  # its own embeddings may have more rows than the target's vocabulary
    omits_mask_token: bool = False  # published configs may lack `mask_token_id`
    # Hooks in other layers of the package.
    config_writer: str  # (SpeculativeConfig, Case): writes into the draft's hf_config
    # Model type that only this package reads -> function that registers its config class.
    model_types: Mapping[str, str] = field(default_factory=dict)
    reference: str | None = None  # (DraftSpec, folder, target) -> the plain PyTorch reference

    @property
    def method(self) -> str:
        return self.drafters[0].method

    @property
    def asks_for_parallel_drafting(self) -> bool:
        """Say whether `parallel_drafting` must be set, which only vLLM's V1 runner knows."""
        return self.drafts_in_parallel and not self.fills_a_block
