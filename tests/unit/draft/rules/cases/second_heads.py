"""Drafts with a second head, DFlash2 and DSpark, which vLLM's own classes load."""

from __future__ import annotations

import torch

from tests.support.checkpoints import DRAFT_VOCAB, HIDDEN, VOCAB
from tests.support.drafts import BLOCK, Draft
from tests.unit.draft.rules.broken import case
from tests.unit.draft.rules.changes import key, more, no_key, no_tensor, tensor

RANK = 8


def _own_matrices(draft: Draft) -> None:
    """With 16 rows behind those of the target's tokens."""
    names = ("embed_tokens", "lm_head", "markov_head.markov_w1", "markov_head.markov_w2")
    for name in names:
        width = RANK if "markov" in name else HIDDEN
        draft.tensors[f"{name}.weight"] = torch.randn(VOCAB + 16, width).bfloat16()
    draft.config["vocab_size"] = VOCAB + 16


# fmt: off
CASES = [
    case(
        "dspark_is_no_part_of_the_target", "other_layers", "dspark", key("model_type", "llama"),
        words=("'DSparkDraftModel'", "'llama'", "DeepSeek-V4"),
    ),
    case(
        "k_is_within_the_block", "anchor", "dspark", engine={"k": BLOCK + 1},
        words=("num_speculative_tokens", "9", "up to 8"),
    ),
    case(
        "k_is_within_the_block", "bonus", "dspark-speculators", engine={"k": BLOCK},
        words=("num_speculative_tokens", "up to 7", "last sampled token"),
    ),
    case(
        "block_size_is_consistent", "dspark", "dspark", key("dspark_block_size", 7),
        words=("dspark_block_size", "(8, 7)"),
    ),
    case(
        "mask_token_is_unambiguous", "noise", "dspark", key("dspark_noise_token_id", 5),
        words=("dspark_noise_token_id", "5)"),
    ),
    case(
        "runner_serves_it", "dflash2_on_v1", "dflash2", engine={"runner": "v1"},
        words=("v1", "v2 for this draft", "second head"),
    ),
    case(
        "runner_serves_it", "dspark_on_v1", "dspark", engine={"runner": "v1"},
        words=("v1", "v2 for this draft", "second head"),
    ),
    case(
        "heads_are_unambiguous", "two_ranks", "dspark", key("markov_rank", 9),
        words=("markov_rank and dflash_config.markov_rank", "(9, 8)"), others=("tensor_shapes_fit",),
    ),
    case(
        "heads_are_unambiguous", "third_place", "dspark", key("dspark_config.markov_rank", 9),
        words=("dspark_config.markov_rank", "(8, 9)"),
    ),
    case(
        "selector_is_stated", "no_rank", "dflash2", no_key("dflash_config.selector_rank"),
        words=("selector_rank", "missing"), others=("tensor_shapes_fit",),
    ),
    case(
        "selector_is_stated", "uneven_groups", "dflash2", key("dflash_config.conv_group_size", 24),
        words=("conv_group_size", "24", "divisor of hidden_size, 64"), others=("tensor_shapes_fit",),
    ),
    case(
        "selector_is_stated", "too_many", "dflash2", key("dflash_config.selector_top_k", VOCAB + 1),
        words=("selector_top_k", "129", "at most 128"),
    ),
    case(
        "selector_knows_every_token", "reduced", "dflash2", key("draft_vocab_size", DRAFT_VOCAB),
        words=("draft_vocab_size", "96", "draft ids for target ids"),
        others=("d2t_present_iff_reduced", "head_is_present"),
    ),
    case(
        "markov_head_is_computed", "no_rank", "dspark", no_key("dflash_config.markov_rank"),
        words=("markov_rank", "missing"), others=("tensor_shapes_fit",),
    ),
    case(
        "markov_head_is_computed", "gated", "dspark", key("dflash_config.markov_head_type", "gated"),
        words=("markov_head_type", "'gated'", "vanilla"),
    ),
    case(
        "confidence_head_is_whole", "no_bias", "dspark", no_tensor("confidence_head.proj.bias"),
        words=("without confidence_head.proj.bias",),
    ),
    case(
        "anchor_is_unambiguous", "bonus", "dspark", key("dspark_bonus_anchor", True),
        key("sample_from_anchor", True), words=("dspark_bonus_anchor", "(True, False)"),
    ),
    case(
        "vocabulary_is_widened", "padded", "dspark", _own_matrices, words=("vocab_size", "144", "128"),
    ),
    case(
        "draft_vocabulary_fits", "widened_without_embeddings", "dspark", _own_matrices,
        no_tensor("embed_tokens.weight"), words=("vocab_size", "144", "128"),
    ),
    case(
        "names_are_as_vllm_reads_them", "prefix", "dspark",
        lambda draft: draft.tensors.update({"model.norm.weight": draft.tensors.pop("norm.weight")}),
        words=("model.norm.weight", 'without "model."'),
    ),
    case(
        "names_are_as_vllm_reads_them", "map", "dspark-speculators",
        lambda draft: draft.tensors.update({"draft_id_to_target_id": draft.tensors.pop("d2t")}),
        words=("draft_id_to_target_id", "d2t for a map"),
    ),
    case(
        "fc_is_in_the_order_of_the_layers", "by_the_list", "dflash2",
        key("dflash_config.target_layer_ids", [5, 1, 3]), words=("[6, 2, 4]", "does not reorder fc"),
    ),
    case(
        "d2t_is_as_vllm_reads_it", "whole", "dspark", more("d2t", VOCAB, dtype=torch.long),
        lambda draft: draft.tensors["d2t"].zero_(), words=("d2t", "not reduced"),
    ),
    case(
        "d2t_is_as_vllm_reads_it", "target_ids", "dspark-speculators",
        tensor("d2t", lambda d2t: d2t + torch.arange(DRAFT_VOCAB)),
        words=("d2t", "target ids", "offsets"),
    ),
    case(
        "plain_parts_are_plain", "head", "dspark-speculators", more("lm_head.weight_scale", 1),
        key("transformer_layer_config.quantization_config", {"quant_method": "fp8"}),
        words=("lm_head.weight_scale", "markov_head.markov_w1"),
        others=("quantised_weights_are_there",),
    ),
]
# fmt: on
