"""The record of the family, and its rule."""

from __future__ import annotations

from dataclasses import replace

from tests.support.toy_family.names import DRAFTERS
from vllm_eagle_ext.draft.draft_config import DraftConfig
from vllm_eagle_ext.draft.findings import Problem, Problems, Severity, rule
from vllm_eagle_ext.draft.spec import Case, DraftSpec, Expected, KeyEffect
from vllm_eagle_ext.families.eagle3.family import NATIVE

SCALE = "feature_scale"


@rule(Severity.ERROR)
def feature_scale_is_positive(case: Case) -> Problems:
    """`feature_scale` is a number above 0."""
    scale = case.flat.get(SCALE)
    if not isinstance(scale, float) or scale <= 0:
        yield Problem(
            field=f"{SCALE} of the draft's config.json",
            value=scale,
            allowed="a number above 0",
            remedy="use the config.json that was published with the draft",
        )


def _tensors(spec: DraftSpec, config: DraftConfig, target_vocab_size: int) -> dict[str, Expected]:
    norm = {"feature_norm.weight": Expected((spec.hidden_size,))}
    return NATIVE.tensors(spec, config, target_vocab_size) | norm


TOY = replace(
    NATIVE,
    name="toy",
    title="toy EAGLE-3",
    drafters=DRAFTERS,
    tensors=_tensors,
    rules=(feature_scale_is_positive,),
    own_keys={SCALE: KeyEffect("scales the fused features", (None, 1))},
    reference=None,
)
FAMILIES = (TOY,)
