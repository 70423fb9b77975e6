# SPDX-License-Identifier: Apache-2.0
"""DraftSpec: what one draft is, decided once and read by everything after; Family: what its kind is.
Case: a draft with its target and what is asked of it, which is all that the rules see of an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vllm_eagle_ext.draft.attention import Gate, Heads, LayerAttention
from vllm_eagle_ext.draft.draft_config import FLAGS, DraftConfig, Flag, Format
from vllm_eagle_ext.draft.draft_files import DraftFiles
from vllm_eagle_ext.draft.findings import Rule
from vllm_eagle_ext.draft.rope_config import Rope
from vllm_eagle_ext.draft.target_facts import TargetFacts
from vllm_eagle_ext.draft.vocabulary import Vocabulary
from vllm_eagle_ext.families.drafter_classes import Backbone, Drafter
from vllm_eagle_ext.options import Options

Presence = Literal["own", "shared", "unknown"]
Override = Literal["auto", "input", "output"] | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdConvention:
    """How aux layer ids are read that are nested in a block of config.json."""

    places: tuple[str, ...]  # dotted keys, read of any family's draft; errors name the first
    is_required: bool = False  # a draft that names no layers is refused; else EAGLE-3's are taken
    names_inputs_without: int | None = None  # nested ids without this one name inputs, not outputs


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """What the blocks of `fc` follow where ids are listed out of order."""

    follows: Literal["list", "layers"]
    doubt: str = ""  # on what a guess rests; empty where it is certain


@dataclass(frozen=True, slots=True)
class AuxLayers:
    """Ids ascend, as vLLM captures layers; block `order[k]` of `fc` reads the k-th."""

    layer_ids: tuple[int, ...]
    rule: str  # which rule chose them, for the log
    published_ids: tuple[int, ...] | None  # as the config has them, or None
    order: tuple[int, ...]
    listed: tuple[int, ...] = ()  # `layer_ids` in the order of the config or the option
    blocks: BlockOrder | None = None  # what `order` follows; None: the list ascends

    @property
    def by_block(self) -> list[int]:
        """Return the ids as the blocks of `fc` lie."""
        return [layer for _, layer in sorted(zip(self.order, self.layer_ids, strict=True))]

    @property
    def is_reordered(self) -> bool:
        return self.by_block != list(self.layer_ids)


NO_AUX_LAYERS = AuxLayers((), "the draft is one without aux states", None, ())


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

    architecture: str = ""  # as published; speculators: of its layer's block
    speculators_type: object = None
    has_mask_hidden: bool = False
    has_gate: bool = False
    norm_output: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    shape: tuple[int, ...]
    optional: bool = False
    kind: str = "float"  # "float", "integer" or "mask"
    other_shape: tuple[int, ...] | None = None  # of the same values in the same order

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.shape,) if self.other_shape is None else (self.shape, self.other_shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family:
    """All that is particular to one drafter family.

    A draft belongs to the first registered family that has its drafter class and whose
    `matches` holds. Hooks that need vLLM or torch are named as "module:function", so that a record
    can be read without them.
    """

    name: str  # in JSON and in docs/published_drafts.md
    title: str  # for readers
    drafters: tuple[Drafter, ...]
    matches: Callable[[Evidence], bool] = lambda evidence: True
    id_convention: IdConvention
    # What the drafter is built of.
    read_layers: Callable[[DraftConfig, Backbone, Format], tuple[LayerAttention, ...]]
    tensors: Callable[[DraftSpec, DraftConfig, int], dict[str, Expected]]
    rules: tuple[Rule, ...] = ()  # of its own folder, after those of `rules/` for its kind
    own_keys: Mapping[str, KeyEffect] = field(default_factory=dict)  # that only it computes with
    # Values of keys that say what the family is, and others are refused for.
    identity_keys: Mapping[str, Any] = field(default_factory=dict)
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
    # (Case, verifier or None, K): the config.json that vLLM's own class needs; None: not tried.
    stock_config: str | None = None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSpec:
    model: str  # as the user named it
    architecture: str  # as published
    format: Format
    family: Family
    drafter: Drafter  # the record of the class that serves it
    weights: Literal["safetensors", "bin"]
    num_layers: int
    hidden_size: int  # H
    target_hidden_size: int  # Ht
    heads: Heads
    layers: tuple[LayerAttention, ...]
    aux_layers: AuxLayers
    fc_norm: Flag  # one RMSNorm per aux layer before fc
    norm_output: Flag  # the normalised hidden state is fed back
    norm_before_fc: Flag  # one RMSNorm over all aux layers before fc
    norm_before_residual: Flag  # the residual starts from the normalised feature
    gate: Gate | None
    vocabulary: Vocabulary
    embeddings: Presence
    head: Presence
    rope: Rope
    block_size: int | None
    samples_anchor: bool  # the first position of a block is drafted too
    mask_token_id: int | None
    embedding_scale: float  # of the embeddings, its own or the target's
    trained_k: int | None  # drafted tokens in training, where the config says so
    trained_length: int | None  # positions in its config: at least the length of its training texts
    draft_window: int | None  # the option's, of the layers that were published without one
    quantisation: str | None
    # The option's, ascending: of a head over the whole vocabulary, the target ids whose rows are kept.
    kept_ids: tuple[int, ...] | None = field(default=None, repr=False)

    @property
    def head_rows(self) -> int:
        """Return the rows of the output head that it drafts with."""
        return self.vocabulary.size if self.kept_ids is None else len(self.kept_ids)

    @property
    def head_bytes(self) -> int:
        """Return the bytes of the output head that it drafts with, plain in 16 bit."""
        width = self.target_hidden_size if self.head == "shared" else self.hidden_size
        return 2 * self.head_rows * width

    @property
    def fuses_aux_states(self) -> bool:
        return bool(self.aux_layers.layer_ids)

    @property
    def most_drafted(self) -> int | None:
        """Return the tokens that a trained block drafts; None where its size is not known."""
        return self.block_size and self.block_size - (not self.samples_anchor)

    @property
    def flags(self) -> Mapping[str, Flag]:
        return {name: getattr(self, name) for name in FLAGS}

    @property
    def title(self) -> str:
        return self.family.title


Runner = Literal["v1", "v2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRequest:
    """Holds what a user asks of a draft. None: not said, and what depends on it is not judged."""

    options: Options = field(default_factory=Options)
    method: str | None = None
    k: int | None = None
    max_model_len: int | None = None
    runner: Runner | None = None
    parallel_drafting: bool | None = None
    # Or not known. Its V2 wants aux states whatever the draft's config says, and drafts at any length.
    before_033: bool = True
    registered: frozenset[str] = frozenset()  # architectures of others that this vLLM knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    files: DraftFiles
    flat: Mapping[str, Any]  # flattened, without nulls, with the draft's own depth
    config: DraftConfig
    spec: DraftSpec
    expected: Mapping[str, Expected]  # by canonical name, as the draft's family says
    target: TargetFacts  # without rows that the draft does not know, which are its padding
    request: DraftRequest

    @property
    def is_reduced(self) -> bool:
        return self.spec.vocabulary.size < self.target.vocab_size

    @property
    def rope_table(self) -> int | None:
        """Return the positions in vLLM's table of the draft's rope; None: as many as are served."""
        is_raised = self.request.before_033 or self.spec.family.method != "eagle3"
        return self.spec.rope.table(self.config.max_position_embeddings, is_raised=is_raised)

    @property
    def has_tensors(self) -> bool:
        return self.files.weights == "safetensors"
