# SPDX-License-Identifier: Apache-2.0
"""Loads a draft's weights so that each one arrives, in its place, or the load fails by name.

Differences from vLLM's drafters, which leave a module without weights as it was allocated: every
parameter starts as NaN and must be finite at the end, and the tensors that arrive are compared with
those that the draft's rules expect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from vllm_eagle_ext.draft.quantisation import FUSED
from vllm_eagle_ext.draft.tensors import COMPUTED, canonical_name
from vllm_eagle_ext.draft.vocabulary import MapKind, is_identity, is_map, map_kind, target_ids
from vllm_eagle_ext.errors import UnsupportedDraftError
from vllm_eagle_ext.log import get_logger

logger = get_logger(__name__)

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FILLED = (".weight", ".bias", ".attention_sink_bias")
# Made at run time, or with a meaning when absent: scales of the cache, the mask's own embedding, and
# the norm that only the first layer uses.
_NOT_FROM_FILES = ("attn", "mla_attn", "mask_embedding", "hidden_norm")
_SHARED = ("embed_tokens.", "lm_head.")  # with the target, if the draft has none


@dataclass(frozen=True, slots=True)
class LoadingPlan:
    """The tensors to load: of the files' headers, else as the rules expect. Travels as plain JSON."""

    required: dict[str, list[list[int]]]  # canonical name -> shapes that it may have
    optional: dict[str, list[list[int]]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)  # blocks of fc, in the order of the aux layers
    gate: dict[str, Any] | None = None  # `GatePlan` of a gated draft
    d2t_kind: MapKind | None = None  # None: no map, or it could not be read beforehand
    target_vocab_size: int = 0  # tokens of the target that the draft knows
    embedding_rows: int = 0  # of the target's embeddings, its padding included
    drop_unexpected: bool = False  # `strict: false`
    kept_ids: list[int] | None = None  # the option's `draft_vocabulary`, ascending


class StrictWeights:
    """Mixed in before one of vLLM's drafter classes; `loading_plan` comes from the config's marker."""

    loading_plan: LoadingPlan
    has_started = False  # once true, what arrives is an update, which may bring some tensors only

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        """Load them, and refuse a draft of which a part is missing or wrong.

        Args:
            weights: published names and tensors.

        Raises:
            UnsupportedDraftError: a tensor that is missing, unexpected, of another shape, or not finite.
        """
        assert isinstance(self, torch.nn.Module)
        if self.has_started:
            return super().load_weights(self.for_update(self.arranged(weights, set())))  # type: ignore[misc]
        seen: set[str] = set()
        built = {name for name, _ in self.named_parameters()}
        self._forget()
        loaded = super().load_weights(self.arranged(weights, seen))  # type: ignore[misc]
        _require_all(self.loading_plan, seen)
        _settle_unused(self, seen)
        _require_fed(self, built, seen, self.loading_plan)
        _require_finite(self, seen)
        self.has_started = True
        return loaded

    def arranged(
        self, weights: Iterable[tuple[str, torch.Tensor]], seen: set[str]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors as vLLM's loader is to see them; canonical names go into `seen`."""
        return _arranged(weights, self.loading_plan, seen)

    def for_update(
        self, weights: Iterator[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield those of them that an update may bring."""
        return weights

    def is_anothers(self, name: str) -> bool:
        """Say whether a parameter belongs to another model, with which vLLM shares it."""
        return False

    def _forget(self) -> None:
        """Fill with NaN what the files may hold. Embeddings that the target will share stay unwritten: a
        host gives memory when it is written to, and a whole vocabulary's raised the peak of a start."""
        planned = {*self.loading_plan.required, *self.loading_plan.optional}
        for name, parameter in self.named_parameters():  # type: ignore[attr-defined]
            canonical = canonical_name(name)
            fills = name.endswith(_FILLED) and parameter.dtype in _FLOATS and not parameter.is_meta
            if fills and not _is_shared(canonical, planned) and not self.is_anothers(canonical):
                parameter.data.fill_(float("nan"))


def _arranged(
    weights: Iterable[tuple[str, torch.Tensor]], plan: LoadingPlan, seen: set[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield canonical names, columns of fc and numbers of fc_norm in ascending order of aux layer."""
    for published, tensor in weights:
        name = canonical_name(published)
        if name.endswith(COMPUTED) or name == "t2d":
            continue
        shapes = plan.required.get(name) or plan.optional.get(name)
        if shapes is None and plan.drop_unexpected:
            logger.warning("Draft tensor %s is not loaded: the drafter has no use for it.", published)
            continue
        _require_shape(published, tensor, shapes)
        if name == "mask_hidden" and not tensor.isfinite().all():  # becomes a buffer, no parameter
            raise _bad_weights(f"values of {published}", "infinite or NaN", "finite numbers")
        seen.add(name)
        if name == "d2t" and len(tensor) == plan.target_vocab_size:
            _require_identity(tensor)
        elif name == "d2t":
            yield name, _as_offsets(tensor, plan)
        elif name == "embed_tokens.weight":
            yield name, _padded(tensor, plan.embedding_rows)
        else:
            yield _reordered(name, tensor, plan.order)


def _require_shape(published: str, tensor: torch.Tensor, shapes: list[list[int]] | None) -> None:
    if shapes is None:
        raise _bad_weights(
            f"tensor {published}", "present", "only tensors that the drafter computes with"
        )
    if list(tensor.shape) not in shapes:
        allowed = " or ".join(str(tuple(shape)) for shape in shapes)
        raise _bad_weights(f"shape of {published}", tuple(tensor.shape), f"{allowed}, as at the start")


def _require_identity(d2t: torch.Tensor) -> None:
    """Refuse a d2t that moves a token: vLLM's drafters of a whole vocabulary have none."""
    if d2t.is_floating_point() or not is_identity(d2t.tolist()):
        raise _bad_weights("d2t", "another order", "each token in its place, for a whole vocabulary")


def _as_offsets(tensor: torch.Tensor, plan: LoadingPlan) -> torch.Tensor:
    """Turn d2t into offsets, as the start has read it, which may have gone by t2d."""
    d2t = [] if tensor.is_floating_point() else tensor.tolist()
    kind = plan.d2t_kind or map_kind(d2t, plan.target_vocab_size)
    if kind is None or not is_map(target_ids(d2t, kind), plan.target_vocab_size):
        raise _bad_weights(
            "d2t", "no map", f"different target ids below {plan.target_vocab_size}, as offsets"
        )
    if kind == "absolute":
        tensor = tensor - torch.arange(len(tensor), dtype=tensor.dtype, device=tensor.device)
    return tensor


def _padded(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the embeddings with rows of zeros for the target's padding, whose ids never come."""
    more = rows - len(tensor)
    return tensor if more <= 0 else torch.cat([tensor, tensor.new_zeros(more, *tensor.shape[1:])])


def _reordered(name: str, tensor: torch.Tensor, order: list[int]) -> tuple[str, torch.Tensor]:
    """Put a tensor's blocks in ascending order of aux layer; `order`: the block of each in the file."""
    if order == sorted(order):
        return name, tensor
    if name.startswith("fc_norm."):
        position = order.index(int(name.split(".")[1]))
        return f"fc_norm.{position}.weight", tensor
    if name in ("fc.weight", "input_norm.weight", "mask_hidden"):
        blocks = tensor.chunk(len(order), dim=-1)  # each [.., Ht]
        return name, torch.cat([blocks[k] for k in order], dim=-1)
    return name, tensor


def _require_all(plan: LoadingPlan, seen: set[str]) -> None:
    missing = sorted(set(plan.required) - seen)
    if missing:
        raise _bad_weights("tensors of the draft", f"without {', '.join(missing)}", "all of them")


def _settle_unused(model: torch.nn.Module, seen: set[str]) -> None:
    """Fill each hidden_norm that the files lack with ones. Only the first is used."""
    for name, parameter in model.named_parameters():
        canonical = canonical_name(name)
        if canonical.endswith(".hidden_norm.weight") and canonical not in seen:
            parameter.data.fill_(1.0)


def _require_fed(model: torch.nn.Module, built: set[str], seen: set[str], plan: LoadingPlan) -> None:
    """Refuse a load where a parameter that vLLM built before it, of any kind, has no tensors in the
    files. In the load vLLM may quantise, and makes further scales."""
    # Next to a padded target vLLM builds a d2t for a whole vocabulary: zeros, which is right.
    unfed = {"d2t"} if plan.embedding_rows > plan.target_vocab_size else set()
    missing = []
    for name, _ in model.named_parameters():
        if name not in built:
            continue
        module, _, kind = canonical_name(name).rpartition(".")
        parent, _, part = module.rpartition(".")
        if _is_shared(f"{module}.{kind}", seen) or part in _NOT_FROM_FILES or kind in _NOT_FROM_FILES:
            continue
        sources = [f"{parent}.{piece}" for piece in FUSED.get(part, ())] or [module]
        names = [f"{source}.{kind}".strip(".") for source in sources]
        missing += [each for each in names if each not in seen | unfed]
    if missing:
        raise _bad_weights(
            "tensors of the draft", f"without {', '.join(sorted(missing))}", "all of them"
        )


def _is_shared(name: str, seen: set[str]) -> bool:
    return name.startswith(_SHARED) and name not in seen


def _require_finite(model: torch.nn.Module, seen: set[str]) -> None:
    """Refuse values that are not finite, which a part that was never loaded still has."""
    for name, parameter in model.named_parameters():
        canonical = canonical_name(name)
        if _is_shared(canonical, seen) or parameter.dtype not in _FLOATS or parameter.is_meta:
            continue
        # One pass without a mask of the parameter's size; NaN and infinities survive it.
        low, high = torch.aminmax(parameter.data) if parameter.numel() else (torch.zeros(()),) * 2
        if not torch.stack([low, high]).isfinite().all():
            raise _bad_weights(
                f"values of {canonical}", "infinite, NaN, or loaded in part", "finite numbers"
            )


def _bad_weights(field_: str, value: object, allowed: str) -> UnsupportedDraftError:
    return UnsupportedDraftError(
        field=f"{field_} of the draft's files" if not field_.startswith("tensors") else field_,
        value=value,
        allowed=allowed,
        remedy="download the draft again, or run `vllm-eagle check --weights` on it",
    )
