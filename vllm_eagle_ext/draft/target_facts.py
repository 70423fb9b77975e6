# SPDX-License-Identifier: Apache-2.0
"""What a draft has to fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vllm_eagle_ext.draft.draft_files import read_config
from vllm_eagle_ext.draft.rope_config import Rope, is_readable, read_rope, rope_block
from vllm_eagle_ext.errors import SpeculativeConfigError, UnsupportedDraftError

# Where composite configs keep the language model, or the part that holds it. `get_text_config` of
# transformers and of vLLM's config classes finds the same ones.
_TEXT_BLOCKS = ("text_config", "language_config", "llm_config", "thinker_config", "vlm_config")
_OF_OLDER_ONES = ("decoder", "decoder_config", "generator", "text_encoder")  # and next to other parts
_DEEPEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    num_layers: int  # N
    hidden_size: int  # Ht
    vocab_size: int  # V
    rope: Rope = Rope(None)
    max_position_embeddings: int | None = None
    embedding_scale: float = 1.0  # what it multiplies the rows of its embedding table by
    folder: Path | None = None  # with the tokenizer, if it is here
    padding: int = 0  # rows after vocab_size, of which a draft knows nothing

    @property
    def rows(self) -> int:
        """Return the rows of its embeddings and head."""
        return self.vocab_size + self.padding

    @classmethod
    def from_config(cls, config: Mapping[str, Any], folder: Path | None = None) -> TargetFacts:
        """Read the facts from a target's config.json.

        Raises:
            UnsupportedDraftError: a size is missing or no positive integer.
        """
        text = text_config(config)
        length = text.get("max_position_embeddings")
        return cls(
            num_layers=_size(text, "num_hidden_layers"),
            hidden_size=_size(text, "hidden_size"),
            vocab_size=_size(text if text.get("vocab_size") else config, "vocab_size"),
            rope=target_rope(text) if is_readable(text) else Rope(None),
            max_position_embeddings=length if type(length) is int else None,
            embedding_scale=table_scale(text),
            folder=folder,
        )


def read_named_target(draft: str, **place: Any) -> str:
    """Read which target a draft in the speculators format was trained for, as `vllm serve DRAFT` does.

    Args:
        place: revision and download_dir of the draft.

    Raises:
        SpeculativeConfigError: the draft names none.
        EagleExtError: the draft has no config.json that can be read.
    """
    block = read_config(draft, field="DRAFT", **place).get("speculators_config")
    verifier = block.get("verifier") if isinstance(block, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    if isinstance(name, str) and name:
        return name
    raise SpeculativeConfigError(
        field="--target", value=None,
        allowed="a folder or hub repository; the config.json of this draft names no target",
        remedy="name the target as for `vllm serve`",
    )  # fmt: skip


def target_rope(text: Mapping[str, Any]) -> Rope:
    """Return the rope that a draft of the target may be expected to have.

    The sections of XD-RoPE, which transformers calls dynamic, differ for images only, and published
    drafts of such targets have the plain rope.
    """
    rope, block = read_rope(text), rope_block(text)
    is_sectioned = "xdrope_section" in block or ("alpha" in block and "mrope_section" in block)
    return replace(rope, kind="default", factor=None) if is_sectioned else rope


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's block of a composite config, however deep, else the config."""
    for _ in range(_DEEPEST):
        keys = _TEXT_BLOCKS if "num_hidden_layers" in config else (*_TEXT_BLOCKS, *_OF_OLDER_ONES)
        blocks = (config.get(key) for key in keys)
        inner = next((block for block in blocks if block and isinstance(block, Mapping)), None)
        if inner is None:
            break
        config = inner
    return config


def table_scale(text: Mapping[str, Any]) -> float:
    """Return the embeddings' factor: Granite and MiniCPM state it, Gemma scales without being told."""
    keys = ("embedding_multiplier", "scale_emb")
    factor = next((text[key] for key in keys if type(text.get(key)) in (int, float)), None)
    if factor is None and str(text.get("model_type")).startswith("gemma"):
        return math.sqrt(_size(text, "hidden_size"))
    return 1.0 if factor is None else float(factor)


def _size(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is int and value > 0:
        return value
    raise UnsupportedDraftError(
        field=f"{name} of the target's config.json",
        value=value,
        allowed="a positive integer",
        remedy="name the target as for `vllm serve`",
    )
