# SPDX-License-Identifier: Apache-2.0
"""A draft's config.json as typed values, published and speculators format alike.

Sources of the formats: SafeAILab/EAGLE and SpecForge (keys at top level and in `eagle_config`), z-lab
DFlash (`dflash_config`), vllm-project/speculators (`transformer_layer_config`, keys at the root).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from vllm_eagle_ext.draft.findings import Problem, key_problem
from vllm_eagle_ext.draft.rope_config import Positive, RopeKeys, Strict, rope_contradictions
from vllm_eagle_ext.draft.silent_keys import (
    LAYER_BLOCK,
    OF_THE_CLASS,
    edit,
    mistaken,
    nameless,
    without_nulls,
)

_OF_MODELOPT = {
    "FP8": "modelopt", "FP8_PER_CHANNEL_PER_TOKEN": "modelopt", "FP8_PB_WO": "modelopt",
    "NVFP4": "modelopt_fp4",
}  # fmt: skip


def _normalised(config: Mapping[str, Any]) -> dict[str, Any]:
    """Name the method as vLLM does (`_normalize_quantization_config`), whatever way a file spells it."""
    method, nested = config.get("quant_method"), config.get("quantization")
    producer = config.get("producer")
    if (
        isinstance(producer, Mapping)
        and producer.get("name") == "modelopt"
        and isinstance(nested, Mapping)
    ):
        algorithm = str(nested.get("quant_algo")).upper()
        method = _OF_MODELOPT.get(algorithm, method)
    if isinstance(method, str):
        config = {**config, "quant_method": method.lower().replace("compressed_", "compressed-")}
    return dict(config)


Format = Literal["published", "speculators"]
Count = Annotated[int, Field(gt=0, lt=2**31)]
Even = Annotated[Count, Field(multiple_of=2)]  # of rope's channels
TokenId = int
MOST_LAYERS = 64  # a draft with more would cost more than it saves
# One problem of a long list is enough.
LayerTypes = Annotated[
    list[Literal["full_attention", "sliding_attention"]], Field(max_length=MOST_LAYERS, fail_fast=True)
]


class ProposalMethod(Strict):
    speculative_tokens: Count | None = None  # tokens that training unrolled


class SpeculatorsBlock(Strict):
    proposal_methods: Annotated[list[ProposalMethod], Field(fail_fast=True)] = []


class NestedConfig(Strict):
    """`eagle_config`: keys that also occur at top level."""

    use_aux_hidden_state: bool | None = None  # false: no fc, the last state is read
    fc_norm: bool | None = None  # one RMSNorm per aux layer before fc
    use_aux_norm: bool | None = None  # another name of fc_norm
    norm_output: bool | None = None  # the normalised hidden state is fed back
    norm_before_fc: bool | None = None  # one RMSNorm over all aux layers before fc
    norm_before_residual: bool | None = None  # the residual starts from the normalised feature
    # Of a gated q_proj: query and gate head by head, or all queries first.
    gate_layout: Literal["interleaved", "concat"] | None = None


class ProposalHeads(Strict):
    """What corrects the logits of a block: keys at top level, in `dflash_config`, in `dspark_config`."""

    conv_kernel_size: Count | None = None  # DFlash2: taps of a convolution
    conv_group_size: Count | None = None  # DFlash2: channels of a group
    selector_rank: Count | None = None  # DFlash2: width of the codebooks
    selector_top_k: Count | None = None  # DFlash2: candidates per position
    output_multiplier: Positive | None = None  # DFlash2: factor of the logits
    final_logit_softcapping: Annotated[float, Field(ge=0)] | None = (
        None  # DFlash2: bound of the logits; 0: none
    )
    markov_rank: Annotated[int, Field(ge=0)] | None = None  # DSpark: width of the Markov head; 0: none
    markov_head_type: str | None = None  # DSpark: null is vanilla
    enable_confidence_head: bool | None = None  # DSpark: estimates the acceptance of each token
    confidence_head_with_markov: bool | None = None  # DSpark: that head reads the Markov embedding too
    projector_type: str | None = None  # SpecForge: the kind of second head


class DFlashConfig(ProposalHeads):
    """`dflash_config`: keys of drafts that fill in a block; most also occur at top level."""

    block_size: Count | None = None  # positions, of which the first is given
    mask_token_id: TokenId | None = None  # stands for a token that is to be drafted
    causal: bool | None = None  # of all layers; else those that slide are causal
    use_swa: bool | None = None  # all layers slide, where layer_types names none
    swa_window_size: Count | None = None  # of these layers, before sliding_window
    attention_sink_bias: bool | None = None  # each head has a learned sink
    # Only vLLM's class reads it; it is checked here.
    attention_value_scale: float | None = None  # factor of the values of attention
    input_embedding_scale: Positive | None = None  # factor of the embeddings
    sample_from_anchor: bool | None = None  # the first position is drafted too
    use_aux_hidden_state: bool | None = None


class DraftConfig(NestedConfig, ProposalHeads, RopeKeys):
    """What is read of a config; `layer_ids.py` reads layer ids."""

    architectures: Annotated[list[str], Field(fail_fast=True)] | None = None
    model_type: str | None = None
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Annotated[int, Field(gt=0, le=MOST_LAYERS)]
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Even | None = None
    vocab_size: Count  # of the target
    draft_vocab_size: Count | None = None  # rows of lm_head; null: vocab_size
    target_hidden_size: Count | None = None  # of aux states; null: hidden_size
    rms_norm_eps: Annotated[float, Field(gt=0, le=1e-3)]
    hidden_act: Literal["silu"] | None = None
    logit_scale: Positive | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    tie_word_embeddings: bool | None = None
    max_position_embeddings: Count | None = None
    layer_types: LayerTypes | None = None
    sliding_window: Count | None = None
    use_sliding_window: bool | None = None  # Qwen3's key, without layer_types
    max_window_layers: Annotated[int, Field(ge=0)] | None = (
        None  # Qwen3's key: the first layer that slides
    )
    bias: bool | None = None  # an older name of attention_bias
    num_aux_hidden_states: Count | None = None  # number of aux layers
    num_aux_layers: Count | None = None  # number of aux layers
    num_target_layers: Count | None = None  # z-lab: depth of the target; TorchSpec: number of aux layers
    target_num_hidden_layers: Count | None = None  # depth of the target
    attn_output_gate: bool | None = None  # attention output times sigmoid(gate)
    quantization_config: Annotated[dict[str, Any], AfterValidator(_normalised)] | None = None
    eagle_config: NestedConfig | None = None
    # multi-head latent attention
    q_lora_rank: Count | None = None  # null: queries are not compressed
    kv_lora_rank: Count | None = None  # of the latent that the cache keeps
    qk_nope_head_dim: Count | None = None  # of a query's head, not rotated
    qk_rope_head_dim: Even | None = None  # of a query's head, rotated
    v_head_dim: Count | None = None
    # drafts that fill in a block
    dflash_config: DFlashConfig | None = None
    dspark_config: ProposalHeads | None = None
    block_size: Count | None = None
    dspark_block_size: Count | None = None
    dspark_bonus_anchor: bool | None = None  # not sample_from_anchor
    dspark_draft_topk: Count | None = None  # candidates that the Markov head corrects; null: all
    input_embedding_scale: Positive | None = None
    is_causal: bool | None = None  # of all layers, before dflash_config.causal
    # Only vLLM's class reads it; it is checked here.
    is_neox_style: bool | None = None  # rope pairs channels half a head apart
    sliding_window_non_causal: bool | None = None  # speculators: windowed layers are bidirectional too
    sample_from_anchor: bool | None = None
    # The mask token, in the order in which vLLM looks for it.
    mask_token_id: TokenId | None = None
    dspark_noise_token_id: TokenId | None = None
    pard_token: TokenId | None = None
    ptd_token_id: TokenId | None = None
    # speculators
    speculators_config: SpeculatorsBlock | None = None

    @property
    def block_config(self) -> DFlashConfig:
        """Return `dflash_config`, or one that states nothing."""
        return self.dflash_config or DFlashConfig()

    def heads_stated(self, key: str) -> dict[str, Any]:
        """Return dotted place -> value of a key of `ProposalHeads`, the first to try first."""
        holders = {"": self, "dflash_config.": self.dflash_config, "dspark_config.": self.dspark_config}
        values = {place + key: getattr(holder, key) for place, holder in holders.items() if holder}
        return {place: value for place, value in values.items() if value is not None}

    def of_heads(self, key: str) -> Any:
        """Return the first stated value of a key of `ProposalHeads`; None where none is stated."""
        return next(iter(self.heads_stated(key).values()), None)


FLAGS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")
_ALIASES = {"fc_norm": ("fc_norm", "use_aux_norm")}
_BLOCKS = ("eagle_config", LAYER_BLOCK)


@dataclass(frozen=True, slots=True)
class Flag:
    value: bool
    source: str  # the key it came from, "option ..", or "default"
    places: tuple[tuple[str, bool], ...] = ()  # that state it

    def __bool__(self) -> bool:
        return self.value

    @property
    def is_contradictory(self) -> bool:
        return len({value for _, value in self.places}) > 1


def read_flag(config: Mapping[str, Any], name: str, *, default: bool = False) -> Flag:
    """Read a flag.

    Where places contradict each other, the first one wins, and a rule reports that they do.
    """
    places = []
    for block in ("", *_BLOCKS):
        holder = config.get(block) if block else config
        for alias in _ALIASES.get(name, (name,)):
            value = holder.get(alias) if isinstance(holder, Mapping) else None
            if value is not None:
                places.append((f"{block}.{alias}".strip("."), bool(value)))
    if places:
        return Flag(places[0][1], places[0][0], tuple(places))
    return Flag(default, "default")


def format_of(config: Mapping[str, Any]) -> Format:
    keys = config.get("speculators_model_type"), config.get("speculators_config")
    return "published" if keys == (None, None) else "speculators"


def published_architecture(config: Mapping[str, Any]) -> str:
    """Return the first of `architectures`, or "" if there is none."""
    architectures = config.get("architectures")
    named = isinstance(architectures, list) and architectures and isinstance(architectures[0], str)
    return architectures[0] if named else ""  # type: ignore[index]


def flatten(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a speculators config with the keys of its layer's block at the root; others as they are.

    speculators keeps the layer's shape in a block of its own. Keys at the root win over the block's.

    `model_type` and `architectures` of the root name the training class, not the layer; settings of a
    class there reach none.
    """
    layer = config.get("transformer_layer_config")
    if format_of(config) != "speculators" or not isinstance(layer, Mapping):
        return config
    unread = {"model_type", "architectures", *OF_THE_CLASS}
    root = {key: value for key, value in config.items() if key not in unread}
    return {**layer, **{key: value for key, value in root.items() if value is not None}}


def parse_config(config: Mapping[str, Any]) -> DraftConfig | list[Problem]:
    """Return the typed config, or what is wrong with it."""
    flat = dict(flatten(without_nulls(config)))
    problems = [*mistaken(flat)]
    problems += () if format_of(config) == "published" else nameless(config)
    try:
        parsed = DraftConfig.model_validate(flat)
    except ValidationError as error:
        invalid = [_config_problem(details) for details in error.errors()]
        fields = {problem.field for problem in invalid}
        return [*invalid, *(problem for problem in problems if problem.field not in fields)]
    return [*problems, *rope_contradictions(flat)] or parsed


def _config_problem(details: Any) -> Problem:
    path = ".".join(str(part) for part in details["loc"])
    missing = details["type"] == "missing"
    return key_problem(
        path,
        None if missing else details["input"],
        allowed=f"a value: it is not stated ({_kind(path)})" if missing else _kind(path, details["msg"]),
        remedy=f'write "{path}" with the value that the draft was trained with'
        if missing
        else _remedy(path, details["input"]),
    )


# How pydantic's messages begin, and what a reader of JSON calls it.
_PLAIN_WORDS = {
    "a valid boolean": "true or false", "a valid integer": "a whole number", "a valid list": "a list",
    "a valid number": "a number", "a valid string": "text", "a valid dictionary": "an object",
}  # fmt: skip


def _kind(path: str, message: str = "vLLM would take another model's default") -> str:
    names = {"rms_norm_eps": "a positive number up to 0.001", "hidden_act": '"silu"'}
    for prefix in ("Value error, ", "Input should be "):
        message = message.removeprefix(prefix)
    for theirs, plain in _PLAIN_WORDS.items():
        message = plain if message.startswith(theirs) else message
    return names.get(path, message[:1].lower() + message[1:])


def _remedy(path: str, value: object) -> str:
    """Say what to edit; the file may be the one that was published."""
    if path == "hidden_act" and isinstance(value, str):
        return "use another draft: no drafter of vLLM computes this activation"
    if path == "model_type":
        return 'write the type of its layers, such as "llama"'
    if path.partition(".")[0] in RopeKeys.model_fields:
        return "state what the draft was trained with, or leave the key out if it was trained without"
    if path.endswith("head_dim") and type(value) is int:
        return "correct the number, if the tensors have others; otherwise use another draft"
    field = DraftConfig.model_fields.get(path)
    if field is None:
        return "correct the value, or leave the key out"
    kind: Any = Annotated[field.annotation, field]
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def fits(guess: object) -> bool:
        try:
            adapter.validate_python(guess, strict=True)
        except ValidationError:
            return False
        return True

    return edit(path, value, fits, is_needed=field.is_required())
