# SPDX-License-Identifier: Apache-2.0
"""Drafts that are DFlash with a second head and are served by vLLM's own classes: DFlash2, DSpark."""

from __future__ import annotations

from dataclasses import replace

from vllm_eagle_ext.draft.draft_config import DraftConfig, Format
from vllm_eagle_ext.draft.rules.proposal_heads import CONFIDENCE
from vllm_eagle_ext.draft.spec import DraftSpec, Expected
from vllm_eagle_ext.families.dflash.family import DFLASH
from vllm_eagle_ext.families.dflash2.names import DFLASH2_DRAFTER, DSPARK_DRAFTER

_WRITERS = "vllm_eagle_ext.families.dflash2.config_writer"
_REFERENCES = "vllm_eagle_ext.measure.reference.dflash"


def _dflash2_tensors(
    spec: DraftSpec, config: DraftConfig, target_vocab_size: int
) -> dict[str, Expected]:
    """Return DFlash2's tensors. A size that is missing counts as 1 here; a rule reports it."""
    taps, group, rank = (
        config.of_heads(key) or 1 for key in ("conv_kernel_size", "conv_group_size", "selector_rank")
    )
    width = spec.hidden_size
    table = DFLASH.tensors(spec, config, target_vocab_size)
    for layer in range(spec.num_layers):
        for part in ("attention_conv", "mlp_conv"):
            place = f"layers.{layer}.{part}"
            table[f"{place}.base_kernel"] = Expected((2, taps, width))
            rows = 2 * taps * (width // group)
            table[f"{place}.kernel_projection.weight"] = Expected((rows, width))
    for name in ("predecessor", "successor"):
        table[f"candidate_selector.{name}_codebook"] = Expected((config.vocab_size, rank))
    table["candidate_selector.hidden_projection.weight"] = Expected((rank, width))
    return table


def _dspark_tensors(spec: DraftSpec, config: DraftConfig, target_vocab_size: int) -> dict[str, Expected]:
    """Return DSpark's tensors.

    A confidence head may be left out, but not in part, which a rule reports.
    """
    rank, reads = config.of_heads("markov_rank") or 1, config.of_heads("confidence_head_with_markov")
    columns = spec.hidden_size + (rank if reads else 0)
    table = DFLASH.tensors(spec, config, target_vocab_size)
    return table | {
        "markov_head.markov_w1.weight": Expected((config.vocab_size, rank)),
        "markov_head.markov_w2.weight": Expected((spec.vocabulary.size, rank)),
        f"{CONFIDENCE}.weight": Expected((1, columns), optional=True),
        f"{CONFIDENCE}.bias": Expected((1,), optional=True),
    }


def _samples_the_anchor(config: DraftConfig, format_: Format) -> bool:
    """Decide as trained: DeepSpec and SpecForge draft from the first position, speculators as stated."""
    stated = (config.sample_from_anchor, config.block_config.sample_from_anchor)
    found = next((value for value in stated if value is not None), None)
    if found is None and config.dspark_bonus_anchor is not None:
        return not config.dspark_bonus_anchor
    return format_ == "published" if found is None else found


_OF_THE_LAYERS = {key: of for key, of in DFLASH.own_keys.items() if key != "input_embedding_scale"}

DFLASH2 = replace(
    DFLASH,
    name="dflash2",
    title="DFlash2",
    drafters=(DFLASH2_DRAFTER,),
    tensors=_dflash2_tensors,
    scales_logits=frozenset({"output_multiplier", "final_logit_softcapping"}),
    plain_modules=(*DFLASH.plain_modules, "candidate_selector."),
    runs_on_v2_only=True,
    config_writer=f"{_WRITERS}:write_dflash2",
    model_types={},
    reference=f"{_REFERENCES}:DFlash2Reference",
)
DSPARK = replace(
    DFLASH,
    name="dspark",
    title="DSpark",
    drafters=(DSPARK_DRAFTER,),
    layer_ids=replace(
        DFLASH.layer_ids, places=(*DFLASH.layer_ids.places, "dspark_config.target_layer_ids")
    ),
    tensors=_dspark_tensors,
    own_keys=_OF_THE_LAYERS,
    identity_keys={"projector_type": "dspark"},
    plain_modules=(*DFLASH.plain_modules, "markov_head.markov_w1.", "confidence_head."),
    samples_the_anchor=_samples_the_anchor,
    runs_on_v2_only=True,
    widens_inputs=True,
    config_writer=f"{_WRITERS}:write_dspark",
    model_types={},
    reference=f"{_REFERENCES}:DSparkReference",
)

FAMILIES = (DFLASH2, DSPARK)
