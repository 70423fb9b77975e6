# SPDX-License-Identifier: Apache-2.0
"""Lists where vLLM 0.32 and 0.33 without this package read a draft otherwise than it was meant."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_eagle_ext.checkpoint.case import Case
from vllm_eagle_ext.checkpoint.layer_ids import ANGELSLIM_KEY, IDS_KEY


def stock_gaps(case: Case) -> list[str]:
    """Return what vLLM without this package gets wrong.

    An empty list means that vLLM serves the draft rightly.
    """
    gaps = [*_layer_gaps(case), *_weights(case)]
    if case.spec.family.has_flags:
        gaps += _flags(case)
    elif case.spec.family.method == "dflash" and _is_made_causal(case):
        gaps.append("sliding_window_non_causal is taken to mean that every layer is causal")
    return gaps


def _is_made_causal(case: Case) -> bool:
    return case.spec.format == "speculators" and case.config.sliding_window_non_causal is False


def _layer_gaps(case: Case) -> Iterator[str]:
    layers, top = case.spec.aux_layers, case.flat.get(IDS_KEY)
    if layers.is_reordered:
        yield "layers are captured in ascending order, which the blocks of fc do not follow"
    if not case.spec.family.has_flags or layers.published_ids is None:
        return
    if case.flat.get(ANGELSLIM_KEY) is not None:
        yield f"{ANGELSLIM_KEY} is not read"
    elif top is None:
        yield "layer ids nested in eagle_config are read by the V1 runner only, one layer low"
    elif list(layers.layer_ids) != sorted(layers.published_ids):
        yield "layer ids are read as those of inputs"
    elif len(layers.layer_ids) != 3 and not case.config.num_aux_hidden_states:
        yield "the width of fc follows num_aux_hidden_states, which is missing"


def _flags(case: Case) -> Iterator[str]:
    for name in ("norm_output", "fc_norm"):
        if case.spec.flags[name].value != bool(case.files.config.get(name)):
            yield f"{name} is read at top level of config.json only"
    if case.spec.family.asks_for_parallel_drafting and (case.spec.fc_norm or case.spec.norm_output):
        yield "fc_norm and norm_output of a P-EAGLE draft are dropped"


def _weights(case: Case) -> Iterator[str]:
    if case.spec.vocabulary.map_kind == "absolute":
        yield "d2t is read as offsets"
    if "d2t" in case.files.tensors and not case.is_reduced:
        yield "a draft with a whole vocabulary and a d2t is not loaded"
    if case.spec.embedding_scale != 1 and not case.spec.drafter.is_vllms:
        yield "input_embedding_scale is read for DFlash 2 only"
    if case.spec.gate:
        yield "the gate of the attention output is dropped"
