"""What this package says of a draft and computes with it."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.peers.chains import Chains
from tests.peers.texts import target
from vllm_eagle_ext.draft.spec import DraftSpec
from vllm_eagle_ext.measure.reference.published import load_reference, residual_stream
from vllm_eagle_ext.start.check import CheckRequest, CheckResult, run_check


def checked(folder: Path, target_name: str, options: dict | None = None) -> CheckResult:
    """For GPUs, where both of vLLM's runners are, and texts of the length that engines serve."""
    request = CheckRequest(
        draft=str(folder), target=target_name, options=options or {}, platform="cuda",
        engine={"max_model_len": 256},
    )  # fmt: skip
    return run_check(request)


def drafted(spec: DraftSpec, folder: Path, text: tuple[int, ...], target_name: str, k: int) -> Chains:
    """The reference's chains behind every row of the text."""
    model = target(target_name)
    reference = load_reference(spec, folder, model)
    rows = reference.true_rows(text, residual_stream(model, text, spec.aux_layers.layer_ids))
    drafts = [reference.draft(row, k, rows) for row in range(len(text) - 1)]
    return Chains(
        torch.tensor([draft.tokens for draft in drafts]),
        torch.tensor([draft.logits for draft in drafts]),
        torch.tensor([draft.margins for draft in drafts]),
    )
