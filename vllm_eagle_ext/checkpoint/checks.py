# SPDX-License-Identifier: Apache-2.0
"""One function per rule a draft must keep. Each returns an error or None, and prints nothing."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_eagle_ext.checkpoint.files import DraftFiles
from vllm_eagle_ext.errors import UnsupportedDraftError

_LAYER_MODULES = (
    "hidden_norm", "input_layernorm", "post_attention_layernorm",
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip

# A module is there if one of these is: scales and zero points alone are no weights.
_WEIGHT_SUFFIXES = (".weight", ".weight_packed", ".qweight")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    files: DraftFiles
    num_aux_layers: int
    layer_names: str
    fc_norm: bool
    norm_before_fc: bool
    target_hidden_size: int
    target_vocab_size: int

    @property
    def hidden_size(self) -> int:
        return int(self.files.config["hidden_size"])

    @property
    def draft_vocab_size(self) -> int:
        return int(self.files.config.get("draft_vocab_size") or self.target_vocab_size)


def check_draft(
    files: DraftFiles,
    *,
    num_aux_layers: int,
    layer_names: str,
    fc_norm: bool,
    norm_before_fc: bool,
    target_hidden_size: int,
    target_vocab_size: int,
) -> None:
    """Raise the first broken rule of RULES.

    Args:
        num_aux_layers: n, how many boundaries were resolved.
        layer_names: the rule that resolved them, for the message.
        target_hidden_size: Ht.
        target_vocab_size: V.

    Raises:
        UnsupportedDraftError
    """
    draft = _Draft(
        files=files,
        num_aux_layers=num_aux_layers,
        layer_names=layer_names,
        fc_norm=fc_norm,
        norm_before_fc=norm_before_fc,
        target_hidden_size=target_hidden_size,
        target_vocab_size=target_vocab_size,
    )
    for rule in RULES:
        if (error := rule(draft)) is not None:
            raise error


def sizes_are_stated(draft: _Draft) -> UnsupportedDraftError | None:
    config = draft.files.config
    optional = ("num_hidden_layers", "num_key_value_heads", "head_dim", "draft_vocab_size")
    for name in ("hidden_size", "num_attention_heads", *optional):
        value = config.get(name)
        if (type(value) is int and value > 0) or (value is None and name in optional):
            continue
        return UnsupportedDraftError(
            field=f"{name} of the draft's config.json",
            value=value,
            allowed="a positive integer",
            remedy="use the config.json that was published with the draft",
        )
    return None


def target_hidden_size_fits(draft: _Draft) -> UnsupportedDraftError | None:
    """Without `target_hidden_size` the draft's own width is the width of the states it reads."""
    key = "target_hidden_size"
    stated = draft.files.config.get(key)
    value = draft.hidden_size if stated is None else stated
    if value == draft.target_hidden_size:
        return None
    return UnsupportedDraftError(
        field=f"{'hidden_size' if stated is None else key} of the draft {draft.files.model!r}",
        value=value,
        allowed=f"{draft.target_hidden_size}, the target's hidden size",
        remedy="serve the draft with the target it was trained for",
    )


def embeddings_can_be_shared(draft: _Draft) -> UnsupportedDraftError | None:
    if "embed_tokens.weight" in draft.files.tensors:
        return None
    if draft.hidden_size == draft.target_hidden_size:
        return None
    return UnsupportedDraftError(
        field="embed_tokens.weight of the draft",
        value=None,
        allowed=f"a tensor of width {draft.hidden_size}, because the target's embeddings have width "
        f"{draft.target_hidden_size}",
        remedy="use a checkpoint that carries its own embeddings",
    )


def tensors_are_complete(draft: _Draft) -> UnsupportedDraftError | None:
    """vLLM leaves a module without weights uninitialised, without a word.

    By module, not by tensor: a quantised one has `weight_packed` or scales in place of `weight`.
    """
    expected = ["fc", "norm"]
    for layer in range(int(draft.files.config.get("num_hidden_layers") or 1)):
        names = _LAYER_MODULES if layer == 0 else _LAYER_MODULES[1:]  # hidden_norm: layer 0 only
        expected += [f"layers.{layer}.{name}" for name in names]
    if draft.draft_vocab_size < draft.target_vocab_size:
        expected += ["lm_head", "d2t"]
    present = {
        name.rpartition(".")[0] or name
        for name in draft.files.tensors
        if name.endswith(_WEIGHT_SUFFIXES) or name == "d2t"
    }
    missing = [name for name in expected if name not in present]
    if not missing:
        return None
    return UnsupportedDraftError(
        field="tensors of the draft",
        value=f"without {', '.join(missing)}",
        allowed="every tensor of an EAGLE-3 draft of this config",
        remedy="download all files of the draft, or check that config.json belongs to the weights",
    )


def fc_reads_every_aux_layer(draft: _Draft) -> UnsupportedDraftError | None:
    header = draft.files.tensors.get("fc.weight")
    expected = (draft.hidden_size, draft.num_aux_layers * draft.target_hidden_size)
    if header is None or header.shape == expected:  # quantised: vLLM checks the packed shape
        return None
    return UnsupportedDraftError(
        field="shape of fc.weight",
        value=header.shape,
        allowed=f"{expected}: {draft.num_aux_layers} aux layers ({draft.layer_names}) of width "
        f"{draft.target_hidden_size}",
        remedy='name as many layers as fc reads: {"eagle_ext": {"aux_layers": [..]}}',
    )


def attention_is_as_wide_as_the_config_says(draft: _Draft) -> UnsupportedDraftError | None:
    """vLLM keeps the first rows of a taller tensor and drops the rest, without a word."""
    config = draft.files.config
    heads = int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or draft.hidden_size // heads)
    kv_rows = int(config.get("num_key_value_heads") or heads) * head_dim
    rows = {
        "q_proj": heads * head_dim,
        "k_proj": kv_rows,
        "v_proj": kv_rows,
        "o_proj": draft.hidden_size,
    }
    for name, header in draft.files.tensors.items():
        expected = rows.get(name.removesuffix(".weight").rpartition(".")[2])
        if expected is None or not name.endswith(".weight") or header.shape[0] == expected:
            continue
        gated = "q_proj" in name and header.shape[0] == 2 * expected
        return UnsupportedDraftError(
            field=f"rows of {name}",
            value=header.shape[0],
            allowed=f"{expected}, from the heads and head_dim of config.json",
            remedy="this is a gated-attention draft, which is not served yet"
            if gated
            else "check that config.json belongs to the weights",
        )
    return None


def draft_vocabulary_maps_into_the_targets(draft: _Draft) -> UnsupportedDraftError | None:
    """d2t holds offsets: target id = draft id + d2t[draft id]. vLLM checks none of them."""
    offsets = draft.files.d2t
    if draft.draft_vocab_size >= draft.target_vocab_size or offsets is None:
        return None
    ids = [index + offset for index, offset in enumerate(offsets)]
    if len(offsets) != draft.draft_vocab_size:
        problem = f"{draft.draft_vocab_size} offsets, one per draft token"
    elif len(set(ids)) < len(ids):
        problem = "a different target id for each draft id"
    elif min(ids) < 0 or max(ids) >= draft.target_vocab_size:
        problem = f"target ids from 0 to {draft.target_vocab_size - 1}"
    else:
        return None
    return UnsupportedDraftError(
        field="d2t of the draft",
        value=f"{len(offsets)} offsets that give target ids {min(ids)} to {max(ids)}",
        allowed=problem,
        remedy="export d2t as offsets (target id minus draft id), not as target ids",
    )


def input_norm_matches_its_flag(draft: _Draft) -> UnsupportedDraftError | None:
    """vLLM drops the weight without the flag, and leaves the norm at ones without the weight."""
    present = "input_norm.weight" in draft.files.tensors
    if present == draft.norm_before_fc:
        return None
    return UnsupportedDraftError(
        field="norm_before_fc of the draft's config.json",
        value=draft.norm_before_fc,
        allowed=f"{present}, because the weights have {'an' if present else 'no'} input_norm.weight",
        remedy="check that config.json belongs to the weights",
    )


def fc_norms_match(draft: _Draft) -> UnsupportedDraftError | None:
    found = sorted(name for name in draft.files.tensors if name.startswith("fc_norm."))
    wanted = draft.num_aux_layers if draft.fc_norm else 0
    if found == sorted(f"fc_norm.{k}.weight" for k in range(wanted)):
        return None
    return UnsupportedDraftError(
        field="fc_norm tensors of the draft",
        value=found,
        allowed=f"fc_norm.0 to fc_norm.{wanted - 1}, one per aux layer"
        if draft.fc_norm
        else "none, because config.json does not set fc_norm",
        remedy="check that config.json belongs to the weights",
    )


def one_kind_of_input_norm(draft: _Draft) -> UnsupportedDraftError | None:
    """vLLM would apply both norms; no draft is trained with both."""
    if not (draft.fc_norm and draft.norm_before_fc):
        return None
    return UnsupportedDraftError(
        field="fc_norm and norm_before_fc of the draft's config.json",
        value=(True, True),
        allowed="one of the two",
        remedy="ask the publisher which one the draft was trained with, and correct config.json",
    )


RULES = (
    sizes_are_stated,
    target_hidden_size_fits,
    embeddings_can_be_shared,
    tensors_are_complete,
    fc_reads_every_aux_layer,
    attention_is_as_wide_as_the_config_says,
    draft_vocabulary_maps_into_the_targets,
    fc_norms_match,
    one_kind_of_input_norm,
    input_norm_matches_its_flag,
)
