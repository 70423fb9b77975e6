"""The draft vocabulary, its map, head and embeddings."""

from __future__ import annotations

import torch

from tests.support.checkpoints import HIDDEN, VOCAB
from tests.unit.draft.rules.broken import case
from tests.unit.draft.rules.changes import (
    entry,
    key,
    more,
    no_key,
    no_tensor,
    reads_a_wider_target,
    tensor,
)

# fmt: off
CASES = [
    case(
        "draft_vocabulary_fits", "vocab_size", "native", key("vocab_size", 120),
        words=("vocab_size", "120", "128, the target's", 'edit config.json: "vocab_size": 128'),
    ),
    case(
        "draft_vocabulary_fits", "wider_than_the_tables_that_it_shares", "dflash",
        key("vocab_size", 160),
        words=("vocab_size", "160", "128, the target's", "whose tables it shares, edit config.json"),
    ),
    *(
        case(
            "target_is_not_padded", family, family, target={"vocab_size": VOCAB + 32},
            engine={"runner": "v2"}, words=("vocab_size", "128", "160, the rows", "knows no padding"),
        )
        for family in ("dflash2", "dspark")
    ),
    *(
        case(
            "padding_is_the_targets", family, family, *changes, target={"vocab_size": VOCAB + 32},
            words=("vocab_size", "128", "160, the target's", "its last 32 rows"),
        )
        for family, changes in [
            ("native", []), ("mla", []), ("p-eagle", []), ("speculators", []), ("quantised", []),
            ("post-norm", [more("embed_tokens.weight", VOCAB, HIDDEN)]),
        ]
    ),
    case(
        "narrow_vocabulary_is_padded", "another_vocabulary", "native",
        target={"vocab_size": VOCAB + 1025},
        words=("vocab_size", "128", "1153, the target's", "tokenizer.json", '"strict": false'),
    ),
    case(
        "draft_vocabulary_fits", "draft_vocab_size", "mla",
        key("draft_vocab_size", 160), no_tensor("lm_head.weight"),
        words=("draft_vocab_size", "160", "at most 128"),
    ),
    case(
        "d2t_present_iff_reduced", "missing", "native", no_tensor("d2t"),
        words=("d2t", "missing", "96 of 128 is reduced"),
    ),
    case(
        "d2t_present_iff_reduced", "another_order", "mla", more("d2t", VOCAB, dtype=torch.int64),
        tensor("d2t", lambda t: torch.arange(VOCAB).flip(0)),
        words=("d2t", "another order of tokens", "128 of 128 is not reduced", "the target's order"),
    ),
    case(
        "d2t_present_iff_reduced", "size_not_stated", "native", no_key("draft_vocab_size"),
        others=("tensor_shapes_fit", "t2d_marks_a_whole_vocabulary"),
        words=("d2t", "a map of 96 tokens", '"draft_vocab_size": 96'),
    ),
    case(
        "t2d_marks_a_whole_vocabulary", "in_part", "mla", more("t2d", VOCAB, dtype=torch.bool),
        entry("t2d", 5, False), words=("t2d", "127 target ids marked", "all 128 target ids"),
    ),
    case(
        "d2t_is_a_map", "negative", "native", entry("d2t", 0, -1),
        words=("d2t", "-1 to ", "96 different target ids from 0 to 127"),
    ),
    case(
        "d2t_is_a_map", "beyond_the_vocabulary", "native", entry("d2t", -1, 200),
        words=("d2t", "to 295", "from 0 to 127"),
    ),
    case(
        "d2t_is_a_map", "all_the_same", "native",
        tensor("d2t", lambda t: -torch.arange(len(t))), words=("0 to 0, 1 of them distinct",),
    ),
    case(
        "d2t_is_a_map", "short", "native", tensor("d2t", lambda t: t[:-1]), no_tensor("t2d"),
        words=("I64 of shape (95,)", "96 integers, one per draft token"),
    ),
    case(
        "d2t_ascends", "two_swapped", "native",
        tensor("d2t", lambda t: torch.cat([t[1:2] + 1, t[:1] - 1, t[2:]])),
        words=("order of the target ids in d2t", "'not ascending'", "by frequency"),
    ),
    case(
        "d2t_ascends", "by_frequency", "native",
        tensor("d2t", lambda t: (t + torch.arange(len(t))).flip(0) - torch.arange(len(t))),
        words=("'not ascending'", "export d2t and lm_head again"),
    ),
    case(
        "d2t_agrees_with_t2d", "one_unmarked", "native",
        tensor("t2d", lambda t: t.index_fill(0, t.nonzero()[0], False)),
        words=("t2d", "differs from d2t in 1 target ids", "128 target ids"),
    ),
    case(
        "d2t_agrees_with_t2d", "short", "native", tensor("t2d", lambda t: t[:-1]),
        words=("t2d", "BOOL of shape (127,)", "128"),
    ),
    case(
        "head_is_present", "reduced", "native", no_tensor("lm_head.weight"),
        words=("lm_head.weight", "missing", "96 rows"),
    ),
    case(
        "head_is_present", "wider_target", "mla",
        reads_a_wider_target, no_tensor("lm_head.weight"), more("embed_tokens.weight", VOCAB, HIDDEN),
        target={"hidden_size": 2 * HIDDEN}, words=("lm_head.weight", "width 64", "width 128"),
    ),
    case(
        "embeddings_can_be_shared", "wider_target", "native", reads_a_wider_target,
        target={"hidden_size": 2 * HIDDEN},
        words=("embed_tokens.weight", "missing", "width 64", "width 128"),
    ),
    case(
        "shared_parts_are_usual", "head_of_a_whole_vocabulary", "mla", no_tensor("lm_head.weight"),
        words=("lm_head.weight", "missing", "the target's is used"),
    ),
    case(
        "shared_parts_are_usual", "tied_to_embeddings", "dflash", key("tie_word_embeddings", True),
        more("embed_tokens.weight", VOCAB, HIDDEN), words=("lm_head.weight", "the target's is used"),
    ),
    case(
        "shared_parts_are_usual", "embeddings", "speculators", no_tensor("embed_tokens.weight"),
        words=("embed_tokens.weight", "missing", "the target's is used"),
    ),
    case(
        "tokenizers_agree", "another_token", "native", words=("tokenizer.json", "1 tokens, such as 'b'"),
    ),
]
# fmt: on
