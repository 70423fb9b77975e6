"""Serves a draft with kept rows, and computes the whole head at every drafting step, too."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.updated import ask

_TALLY = "_eagle_ext_compared"


def compare_with_the_whole_head(worker: Any, ids: list[int]) -> None:
    """From now on, compare each drafting step's logits with those of the target's whole head.

    A row is inside where the whole head's first choice is one of the ids.
    """
    draft, target = worker.get_draft_model(), worker.model_runner.get_model()
    inner, kept = draft.compute_logits, torch.tensor(ids)
    tally = {"rows": 0, "inside": 0, "same": 0, "equal_at_ids": 0}

    def both(states: torch.Tensor) -> torch.Tensor:
        logits = inner(states)
        whole = target.compute_logits(states)
        if logits is None or whole is None or not len(states):
            return logits
        choice = whole.argmax(-1)
        inside = torch.isin(choice, kept)
        tally["rows"] += len(choice)
        tally["inside"] += int(inside.sum())
        tally["same"] += int((logits.argmax(-1) == choice)[inside].sum())
        tally["equal_at_ids"] += int((logits[:, kept] == whole[:, kept]).all(-1).sum())
        return logits

    draft.compute_logits = both
    setattr(worker, _TALLY, tally)


def compared(worker: Any) -> dict[str, int]:
    """As it is now: later steps count on."""
    return dict(getattr(worker, _TALLY))


def forget_rows(worker: Any) -> None:
    """As level 2 sleep leaves them: without values."""
    head = worker.get_draft_model().lm_head
    head.weight.data.zero_()
    head.quant_method.process_weights_after_loading(head)


def serve(llm: Any, job: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    ids = job.get("ids")
    if ids is not None:
        llm.collective_rpc(compare_with_the_whole_head, args=(ids,))
    answers = {"answer": ask(llm, job["prompts"])}
    answers["ranks"] = [] if ids is None else llm.collective_rpc(compared)
    if job.get("reload"):
        llm.collective_rpc(forget_rows)
        answers["forgotten"] = ask(llm, job["prompts"])
        llm.collective_rpc("reload_weights")
        answers["reloaded"] = ask(llm, job["prompts"])
    return answers
