# SPDX-License-Identifier: Apache-2.0
"""One function per rule a draft must keep. Each returns an error or None, and prints nothing."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_eagle_ext.checkpoint.files import DraftFiles
from vllm_eagle_ext.errors import UnsupportedDraftError

_LAYER_TENSORS = (
    "hidden_norm", "input_layernorm", "post_attention_layernorm",
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip


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


def hidden_size_is_stated(draft: _Draft) -> UnsupportedDraftError | None:
    value = draft.files.config.get("hidden_size")
    if isinstance(value, int) and value > 0:
        return None
    return UnsupportedDraftError(
        field="hidden_size of the draft's config.json",
        value=value,
        allowed="a positive integer",
        remedy="use the config.json that was published with the draft",
    )


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
    """vLLM leaves a tensor that is missing uninitialised, without a word."""
    expected = ["fc.weight", "norm.weight"]
    for layer in range(int(draft.files.config.get("num_hidden_layers") or 1)):
        names = _LAYER_TENSORS if layer == 0 else _LAYER_TENSORS[1:]  # hidden_norm: layer 0 only
        expected += [f"layers.{layer}.{name}.weight" for name in names]
    if draft.draft_vocab_size < draft.target_vocab_size:
        expected += ["lm_head.weight", "d2t"]
    missing = [name for name in expected if name not in draft.files.tensors]
    if not missing:
        return None
    return UnsupportedDraftError(
        field="tensors of the draft",
        value=f"without {', '.join(missing)}",
        allowed="every tensor of an EAGLE-3 draft of this config",
        remedy="download all files of the draft, or check that config.json belongs to the weights",
    )


def fc_reads_every_aux_layer(draft: _Draft) -> UnsupportedDraftError | None:
    shape = draft.files.tensors["fc.weight"].shape
    expected = (draft.hidden_size, draft.num_aux_layers * draft.target_hidden_size)
    if shape == expected:
        return None
    return UnsupportedDraftError(
        field="shape of fc.weight",
        value=shape,
        allowed=f"{expected}: {draft.num_aux_layers} aux layers ({draft.layer_names}) of width "
        f"{draft.target_hidden_size}",
        remedy='name as many layers as fc reads: {"eagle_ext": {"aux_layers": [..]}}',
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
    hidden_size_is_stated,
    target_hidden_size_fits,
    embeddings_can_be_shared,
    tensors_are_complete,
    fc_reads_every_aux_layer,
    fc_norms_match,
    one_kind_of_input_norm,
)
