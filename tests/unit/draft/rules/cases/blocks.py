"""Drafts that fill in a block: its size, mask token and causality."""

from __future__ import annotations

from tests.support.checkpoints import VOCAB
from tests.support.drafts import MASK_TOKEN
from tests.unit.draft.rules.broken import case
from tests.unit.draft.rules.changes import key, no_key

# fmt: off
CASES = [
    case(
        "k_is_within_the_block", "k_is_the_block", "dflash", engine={"k": 8},
        words=("num_speculative_tokens", "8", "up to 7", "blocks of 8"),
    ),
    case(
        "block_size_is_stated", "missing", "dflash", no_key("block_size"),
        words=("block_size", "missing"),
    ),
    case(
        "block_size_is_consistent", "two", "dflash", key("dflash_config.block_size", 16),
        words=("block_size", "(8, 16)"),
    ),
    case(
        "block_size_is_consistent", "one", "dflash", key("block_size", 1), engine={"k": None},
        words=("block_size", "1", "at least 2"),
    ),
    case(
        "mask_token_is_in_the_vocabulary", "beyond", "dflash", key("dflash_config.mask_token_id", VOCAB),
        words=("mask_token_id", "128", "0 to 127"),
    ),
    case(
        "mask_token_is_in_the_vocabulary", "negative", "p-eagle", key("mask_token_id", -1),
        words=("mask_token_id", "-1", "0 to 127"),
    ),
    case(
        "mask_token_is_in_the_vocabulary", "missing", "p-eagle", no_key("mask_token_id"),
        words=("mask_token_id", "missing"),
    ),
    case(
        "mask_token_is_unambiguous", "two", "dflash", key("mask_token_id", 5),
        words=("mask_token_id", f"(5, {MASK_TOKEN})"),
    ),
    case(
        "anchor_is_not_sampled", "top_level", "dflash", key("sample_from_anchor", True),
        words=("sample_from_anchor", "True"),
    ),
    case(
        "anchor_is_not_sampled", "nested", "dflash", key("dflash_config.sample_from_anchor", True),
        words=("sample_from_anchor", "True"),
    ),
    case(
        "dflash_reads_aux_states", "top_level", "dflash", key("use_aux_hidden_state", False),
        words=("use_aux_hidden_state", "False"),
    ),
    case(
        "dflash_reads_aux_states", "nested", "dflash", key("dflash_config.use_aux_hidden_state", False),
        words=("use_aux_hidden_state", "False"),
    ),
    case(
        "final_state_is_not_normed", "reads_n", "dflash",
        key("dflash_config.target_layer_ids", [1, 3, 7]),
        words=("last aux layer", "8", "before the target's final norm"),
    ),
    case(
        "parallel_drafting_is_asked_for", "off", "p-eagle", engine={"parallel_drafting": False},
        words=("parallel_drafting", "true"),
    ),
]
# fmt: on
