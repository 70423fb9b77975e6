# SPDX-License-Identifier: Apache-2.0
"""Rules about gated attention."""

from __future__ import annotations

from vllm_eagle_ext.draft.attention import ROWS, SEPARATE_GATES
from vllm_eagle_ext.draft.findings import (
    BELONGS,
    Problem,
    Problems,
    Severity,
    contradictions,
    key_problem,
    rule,
)
from vllm_eagle_ext.draft.foreign_drafts import ANOTHER
from vllm_eagle_ext.draft.quantisation import quantised_weights
from vllm_eagle_ext.draft.spec import Case

# What a gated q_proj may consist of next to rows, which can be moved head by head.
_WITHOUT_ROWS = (
    "weight_shape",
    "input_scale",
    "input_global_scale",
    "weight_global_scale",
    "weight_scale_2",
)


@rule(Severity.ERROR)
def gate_matches_its_flag(case: Case) -> Problems:
    """`attn_output_gate` fits the weights. It may be left out."""
    is_gated, gate = case.config.attn_output_gate, case.spec.gate
    if is_gated is not None and is_gated != (gate is not None):
        in_weights = f"{gate.kind} gate in {gate.module}" if gate else "no gate in q_proj or next to it"
        yield key_problem(
            "attn_output_gate",
            is_gated,
            allowed=f"{gate is not None}, because the weights have {'an ' if gate else ''}{in_weights}",
            remedy=f'if the weights are the draft\'s, edit config.json: "attn_output_gate": '
            f"{'true' if gate else 'false'}",
        )


@rule(Severity.ERROR)
def gate_has_the_heads_rows(case: Case) -> Problems:
    """A gate has rows per element or head. Another would be dropped."""
    heads = case.spec.heads
    for name, header in case.files.tensors.items():
        module, _, _ = name.rpartition(".")
        parent, _, part = module.rpartition(".")
        if parent.endswith("self_attn") and part in SEPARATE_GATES and case.spec.gate is None:
            rows = f"{heads.query * heads.dim} rows (per element) or {heads.query} (one per head)"
            can_gate = case.spec.drafter.can_gate
            yield Problem(
                field=f"shape of {header.published}",
                value=header.shape,
                allowed=rows if can_gate else "no gate: no drafter of vLLM computes one in such a draft",
                remedy=BELONGS if can_gate else ANOTHER,
            )


@rule(Severity.WARNING)
def gate_layout_is_stated(case: Case) -> Problems:
    """The layout of a gate in `q_proj` is stated; interleaved is assumed. Shapes cannot tell."""
    gate = case.spec.gate
    if gate and gate.module == "q_proj" and gate.is_assumed:
        yield key_problem(
            "gate_layout",
            None,
            allowed="interleaved (per head, query before gate) or concat (all queries before all "
            f"gates); {gate.layout} is assumed",
            remedy='if acceptance is low, try {"eagle_ext": {"gate_layout": "concat"}}; '
            "`vllm-eagle verify --gate-layouts` measures both",
        )


@rule(Severity.ERROR)
def gate_layouts_agree(case: Case) -> Problems:
    """`gate_layout` has one value everywhere."""
    nested = case.config.eagle_config.gate_layout if case.config.eagle_config else None
    yield from contradictions(
        {"at top level": case.config.gate_layout, "in eagle_config": nested},
        "the same value in both places",
        key="gate_layout",
        remedy="ask the publisher which one it is, and correct config.json",
    )


@rule(Severity.ERROR)
def gated_rows_can_be_moved(case: Case) -> Problems:
    """Scales can move with gate rows. These are rearranged as they load."""
    gate, heads = case.spec.gate, case.spec.heads
    if gate is None:
        return
    for name, header in case.files.tensors.items():
        module, _, kind = name.rpartition(".")
        if not module.endswith(("self_attn.q_proj", f"self_attn.{gate.module}")):
            continue
        separate = gate.module != "q_proj" and module in quantised_weights(case.files.tensors)
        size = header.shape[0] if header.shape else 1
        total = heads.query * heads.dim + gate.rows(heads)
        block = total // size if size else 0
        in_blocks = block * size == total and heads.dim % max(block, 1) == 0
        is_row_wise = kind in ROWS and (gate.module != "q_proj" or size == 1 or in_blocks)
        if separate or not (is_row_wise or kind in _WITHOUT_ROWS):
            yield Problem(
                field=f"{header.published} of a gated draft",
                value=header.shape,
                allowed="plain weights, or quantised ones whose scales are per tensor, per row, or per "
                f"block of rows that divides head_dim, {heads.dim}; a gate of its own: plain weights",
                remedy="use the draft with plain weights",
            )
