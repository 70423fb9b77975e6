"""Small valid drafts with a second head, which vLLM's own classes serve: DFlash2 and DSpark."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.support.checkpoints import DRAFT_VOCAB, HIDDEN, VOCAB
from tests.support.draft_families import BLOCK, BUILDERS, Draft, matrix, scales

TAPS, GROUP, RANK = 2, 16, 8  # of second heads
MARKOV = {
    "markov_rank": RANK, "markov_head_type": "vanilla", "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}  # fmt: skip


def _dflash2(seed: int) -> Draft:
    """As SpecForge and z-lab write it: every size of the second head in `dflash_config`."""
    draft = BUILDERS["dflash"](seed)
    draft.config["architectures"] = ["DFlash2DraftModel"]
    sizes = {"conv_kernel_size": TAPS, "conv_group_size": GROUP, "selector_rank": RANK}
    draft.config["dflash_config"] |= {**sizes, "selector_top_k": 4, "block_size": BLOCK}
    del draft.config["block_size"]
    for layer in range(2):
        for part in ("attention_conv", "mlp_conv"):
            place = f"layers.{layer}.{part}"
            draft.tensors[f"{place}.base_kernel"] = matrix(2 * TAPS, HIDDEN).view(2, TAPS, HIDDEN)
            rows = 2 * TAPS * HIDDEN // GROUP
            draft.tensors[f"{place}.kernel_projection.weight"] = matrix(rows, HIDDEN)
    for name in ("predecessor", "successor"):
        draft.tensors[f"candidate_selector.{name}_codebook"] = matrix(VOCAB, RANK)
    draft.tensors["candidate_selector.hidden_projection.weight"] = matrix(RANK, HIDDEN)
    return draft


def _dspark(seed: int) -> Draft:
    """As SpecForge writes it: the name of DeepSeek's drafts, the sizes in `dflash_config`, no matrices
    of the vocabulary."""
    draft = BUILDERS["dflash"](seed)
    draft.config["architectures"] = ["DSparkDraftModel"]
    draft.config["dflash_config"] |= {"projector_type": "dspark", **MARKOV}
    draft.tensors |= _dspark_heads(VOCAB)
    draft.method, draft.k = "dspark", BLOCK
    return draft


def _dspark_heads(draft_vocab: int) -> dict[str, torch.Tensor]:
    return {
        "markov_head.markov_w1.weight": matrix(VOCAB, RANK),
        "markov_head.markov_w2.weight": matrix(draft_vocab, RANK),
        "confidence_head.proj.weight": matrix(1, HIDDEN + RANK),
        "confidence_head.proj.bias": scales(1),
    }


def _dspark_speculators(seed: int) -> Draft:
    """With a reduced vocabulary, and a first position that is not drafted."""
    draft = BUILDERS["dflash-speculators"](seed)
    draft.config |= {
        "architectures": ["DSparkDraftModel"], "speculators_model_type": "dspark",
        "draft_vocab_size": DRAFT_VOCAB, "sample_from_anchor": False, **MARKOV,
    }  # fmt: skip
    draft.config["speculators_config"]["algorithm"] = "dspark"
    native = BUILDERS["native"](seed).tensors
    draft.tensors |= {name: native[name] for name in ("d2t", "t2d", "lm_head.weight")}
    draft.tensors |= _dspark_heads(DRAFT_VOCAB)
    draft.method = "dspark"
    return draft


SECOND_HEADS: dict[str, Callable[[int], Draft]] = {
    "dflash2": _dflash2,
    "dspark": _dspark,
    "dspark-speculators": _dspark_speculators,
}
