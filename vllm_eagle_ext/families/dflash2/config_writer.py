# SPDX-License-Identifier: Apache-2.0
"""Writes what vLLM reads of a DFlash2 or DSpark draft next to what it reads of a DFlash draft."""

from __future__ import annotations

from typing import Any

from vllm_eagle_ext.draft import Case
from vllm_eagle_ext.draft.draft_config import ProposalHeads
from vllm_eagle_ext.families.dflash.config_writer import write


def write_dflash2(config: Any, case: Case) -> None:
    """Do what `write` does, and write convolution's and selector's sizes to `dflash_config`."""
    write(config, case)
    nested = config.draft_model_config.hf_config.dflash_config
    nested.update(_heads(case))
    nested["sample_from_anchor"] = False


def write_dspark(config: Any, case: Case) -> None:
    """Do what `write` does, and write the Markov and confidence head's sizes at top level."""
    write(config, case)
    hf_config = config.draft_model_config.hf_config
    hf_config.dflash_config.pop("sample_from_anchor", None)  # vLLM refuses it here, whatever the method
    hf_config.sample_from_anchor = case.spec.samples_anchor
    hf_config.mask_token_id = case.spec.mask_token_id
    hf_config.block_size = case.spec.block_size
    for key, value in _heads(case).items():
        setattr(hf_config, key, value)


def _heads(case: Case) -> dict[str, Any]:
    stated = {key: case.config.of_heads(key) for key in ProposalHeads.model_fields}
    return {key: value for key, value in stated.items() if value is not None}
