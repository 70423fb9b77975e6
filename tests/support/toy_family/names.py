"""The drafter class of the family."""

from __future__ import annotations

from dataclasses import replace

from vllm_eagle_ext.families.eagle3.names import LLAMA_DRAFTER

DRAFTERS = (
    replace(
        LLAMA_DRAFTER,
        architecture="Eagle3EagleExtToyForCausalLM",
        package="tests.support.toy_family",
        published=("Eagle3ToyForCausalLM",),
        speculators=(),
        can_gate=False,
    ),
)
