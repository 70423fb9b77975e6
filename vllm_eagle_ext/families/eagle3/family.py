# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3: native, post-norm and gated drafts, those with latent attention (MLA), and P-EAGLE."""

from __future__ import annotations

from dataclasses import replace

from vllm_eagle_ext.draft.attention import causal_layers
from vllm_eagle_ext.draft.draft_config import DraftConfig
from vllm_eagle_ext.draft.expected_tensors import (
    around_the_layers,
    fused_qkv,
    in_layer,
    latent_attention,
    layer_norms,
    mlp,
)
from vllm_eagle_ext.draft.layer_ids import IDS_KEY
from vllm_eagle_ext.draft.spec import DraftSpec, Expected, Family, IdConvention
from vllm_eagle_ext.families.eagle3.names import (
    DEEPSEEK_DRAFTER,
    LLAMA_DRAFTER,
    P_EAGLES,
    QWEN3_DRAFTER,
)


def _eagle3_tensors(spec: DraftSpec, config: DraftConfig, target_vocab_size: int) -> dict[str, Expected]:
    table = around_the_layers(spec, config, target_vocab_size)
    backbone = spec.drafter.backbone
    if spec.family.drafts_in_parallel:  # what stands for the target's states after the last token
        features = len(spec.aux_layers.layer_ids) * spec.target_hidden_size or spec.hidden_size
        table["mask_hidden"] = Expected((1, 1, features), other_shape=(1, features))
    for layer in range(spec.num_layers):
        columns = (1 + (layer == 0)) * spec.hidden_size  # the first reads embeddings and features
        if backbone.has_kv_heads:
            # vLLM's Qwen3 layer has no bias after the heads.
            biased = not backbone.norms_heads
            attention = fused_qkv(spec, config, columns=columns, has_output_bias=biased)
        else:
            attention = latent_attention(spec, config, columns=columns)
        # Later layers have this module, but no use for it.
        hidden = {"hidden_norm.weight": Expected((spec.hidden_size,), optional=layer > 0)}
        table |= in_layer(layer, layer_norms(spec) | hidden, attention, mlp(spec, config))
    return table


NATIVE = Family(
    name="native",
    title="EAGLE-3",
    drafters=(LLAMA_DRAFTER, QWEN3_DRAFTER),
    id_convention=IdConvention(places=(f"eagle_config.{IDS_KEY}",)),
    read_layers=causal_layers,
    tensors=_eagle3_tensors,
    plain_modules=("embed_tokens.",),
    has_flags=True,
    runs_without_aux_states=True,
    config_writer="vllm_eagle_ext.families.eagle3.config_writer:write",
    stock_config="vllm_eagle_ext.families.eagle3.config_writer:stock_config",
    reference="vllm_eagle_ext.measure.reference.eagle3:Eagle3Reference",
)
_POST_NORM = replace(
    NATIVE,
    name="post-norm",
    title="post-norm EAGLE-3",
    matches=lambda evidence: evidence.norm_output,
)
_GATED = replace(NATIVE, name="gated", title="gated EAGLE-3", matches=lambda evidence: evidence.has_gate)
_MLA = replace(
    NATIVE,
    name="mla",
    title="MLA EAGLE-3",
    drafters=(DEEPSEEK_DRAFTER,),
    id_convention=replace(NATIVE.id_convention, names_inputs_without=1),
    plain_modules=("embed_tokens.", "lm_head."),
    stock_config=None,
    reference=None,
)  # fmt: skip
_PARALLEL = replace(
    NATIVE,
    name="p-eagle",
    title="P-EAGLE",
    matches=lambda draft: (
        draft.speculators_type == "peagle" or draft.architecture in P_EAGLES or draft.has_mask_hidden
    ),
    drafts_in_parallel=True,
    omits_mask_token=True,
    stock_config=None,
    reference="vllm_eagle_ext.measure.reference.eagle3:PEagleReference",
)

# Of those with a draft's drafter class, the first that matches is its family.
FAMILIES = (_PARALLEL, _GATED, _POST_NORM, NATIVE, _MLA)
