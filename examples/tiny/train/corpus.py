"""Training text: the source files of the running Python's standard library (PSF licence).

Whole files are held out by a hash of their path, so that the split does not depend on file order.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
HELD_OUT_EVERY = 20
# `encodings` is mostly character tables, which would make any draft look good.
_SKIPPED_PARTS = {"site-packages", "test", "tests", "idle_test", "encodings", "__pycache__"}
_CHAT_TEMPLATE = (
    "{% for message in messages %}# {{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
)


@dataclass(frozen=True)
class Corpus:
    train: dict[str, str]  # path relative to the library root -> source text
    held_out: dict[str, str]


def is_held_out(relative_path: str) -> bool:
    digest = hashlib.sha256(relative_path.encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_EVERY == 0


def read_corpus() -> Corpus:
    root = Path(sysconfig.get_path("stdlib"))
    corpus = Corpus(train={}, held_out={})
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED_PARTS & set(relative.parts):
            continue
        name = relative.as_posix()
        text = path.read_text(encoding="utf-8", errors="replace")
        (corpus.held_out if is_held_out(name) else corpus.train)[name] = text
    return corpus


def train_tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE; id 0 ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = _CHAT_TEMPLATE
    return fast


def encode_stream(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> torch.Tensor:
    """All texts as one stream of ids, each preceded by END_OF_TEXT. Returns int64 [tokens]."""
    stream: list[int] = []
    for encoding in tokenizer.backend_tokenizer.encode_batch(texts):
        stream.append(tokenizer.bos_token_id)
        stream.extend(encoding.ids)
    return torch.tensor(stream, dtype=torch.int64)


def sample_windows(
    stream: torch.Tensor, count: int, length: int, generator: torch.Generator
) -> torch.Tensor:
    """`count` random windows of `length` ids. stream [tokens] -> [count, length]."""
    starts = torch.randint(0, stream.numel() - length, (count,), generator=generator)
    return stream[starts[:, None] + torch.arange(length)]
