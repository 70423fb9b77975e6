# SPDX-License-Identifier: Apache-2.0
"""Reads from config.json the shapes of a target that its memory follows from.

Qwen3-Next, Qwen3.5 and Qwen3.6 name those of gated delta nets alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_eagle_ext.draft.rope_config import is_readable, read_rope, rope_block
from vllm_eagle_ext.draft.target_facts import text_config
from vllm_eagle_ext.errors import UnsupportedTargetError
from vllm_eagle_ext.memory.state_blocks import record_width

_LARGEST = 2**24  # of any size in a config; vocabularies have some 2**18
# Bytes of an element as served: vLLM's `auto` serves a checkpoint in float32 as 16 bit.
_MODEL_BYTES = {"bfloat16": 2, "float16": 2, "float32": 2}
_STATE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
# Architectures of which vLLM does not read `mamba_ssm_dtype`: not in its MODELS_CONFIG_MAP.
STATE_DTYPE_UNREAD = (
    "Qwen3NextForCausalLM",
    "InternS2PreviewForConditionalGeneration",
    "InternS2MobiusForConditionalGeneration",
    "MiniCPMV4_6ForConditionalGeneration",
    "MiniCPMV4_7ForConditionalGeneration",
)
_ROWS_WITH_IMAGES = 4  # of vLLM's MRotaryEmbedding; where sections interleave, as Qwen3's, one
_LINEAR, _FULL = "linear_attention", "full_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """The gated delta nets of a target, all ranks together."""

    layers: int
    key_heads: int  # H
    value_heads: int  # HV
    key_dim: int  # DK
    value_dim: int  # DV
    conv_width: int  # W
    model_bytes: int  # per element of the model's dtype: conv state and recorded inputs
    state_bytes: int  # per element of the recurrent state
    tp: int = 1

    def __post_init__(self) -> None:
        if self.key_heads % self.tp or self.value_heads % self.tp:
            raise UnsupportedTargetError(
                field="tensor_parallel_size", value=self.tp,
                allowed=f"a divisor of {self.key_heads} key heads and {self.value_heads} value heads",
                remedy="choose such a size, or serve the target on fewer GPUs",
            )  # fmt: skip

    @property
    def conv_dim(self) -> int:
        return (2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim) // self.tp

    @property
    def record_width(self) -> int:
        heads = self.key_heads // self.tp, self.value_heads // self.tp
        return record_width(heads[0], self.key_dim, heads[1], self.value_dim)

    @property
    def ssm_bytes(self) -> int:
        """Return bytes of one layer's recurrent state."""
        return self.value_heads // self.tp * self.value_dim * self.key_dim * self.state_bytes

    def conv_bytes(self, k: int) -> int:
        """Compute the bytes of one layer's conv state, which K draft tokens widen."""
        return (self.conv_width - 1 + k) * self.conv_dim * self.model_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Layers that keep keys and values: the target's full ones, or some of a draft's."""

    layers: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    element_bytes: int = 2
    tp: int = 1

    def __post_init__(self) -> None:
        if max(self.kv_heads, self.tp) % min(self.kv_heads, self.tp):
            raise UnsupportedTargetError(
                field="tensor_parallel_size", value=self.tp,
                allowed=f"a divisor or a multiple of {self.kv_heads} key/value heads",
                remedy="choose such a size",
            )  # fmt: skip

    @property
    def token_bytes(self) -> int:
        """Return bytes of one token in one layer on one rank; fewer heads than ranks are repeated."""
        return 2 * max(1, self.kv_heads // self.tp) * self.head_dim * self.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    recurrent: Recurrent
    attention: Attention
    max_position_embeddings: int | None


def read_target(
    config: Mapping[str, Any], *, tp: int = 1, kv_bytes: int | None = None, fp32_state: bool = False
) -> Target:
    """Read the shapes of a hybrid target from its config.json.

    Args:
        kv_bytes: per element of keys and values; None: as the model's dtype.
        fp32_state: where the config asks for no dtype of states, as vLLM on AVX-512 BF16.

    Raises:
        UnsupportedTargetError: no gated delta nets, a size that is none, or ranks that divide no heads.
    """
    text, width = text_config(config), model_bytes(config)
    linear, full = layer_kinds(text)
    length = text.get("max_position_embeddings")
    return Target(
        recurrent=_recurrent_layers(text, linear, config, 4 if fp32_state else width, tp),
        attention=Attention(
            layers=full, kv_heads=size(text, "num_key_value_heads"), head_dim=head_dim(text),
            element_bytes=kv_bytes or width, tp=tp,
        ),
        max_position_embeddings=None if length is None else size(text, "max_position_embeddings"),
    )  # fmt: skip


def _recurrent_layers(
    text: Mapping[str, Any], layers: int, config: Mapping[str, Any], default_state: int, tp: int
) -> Recurrent:
    # Architectures whose states vLLM keeps in the model's dtype have no say in it.
    names = config.get("architectures")
    unread = isinstance(names, list) and any(name in STATE_DTYPE_UNREAD for name in map(str, names))
    dtype = None if unread else text.get("mamba_ssm_dtype")
    has_dtype = dtype not in (None, "auto")
    return Recurrent(
        layers=layers,
        key_heads=size(text, "linear_num_key_heads"),
        value_heads=size(text, "linear_num_value_heads"),
        key_dim=size(text, "linear_key_head_dim"),
        value_dim=size(text, "linear_value_head_dim"),
        conv_width=size(text, "linear_conv_kernel_dim"),
        model_bytes=model_bytes(config),
        state_bytes=_bytes(dtype, "mamba_ssm_dtype", _STATE_BYTES) if has_dtype else default_state,
        tp=tp,
    )


def dtype_of(config: Mapping[str, Any]) -> Any:
    """Read the dtype that the config states, under either of its keys; bfloat16 where it states none."""
    places = [text_config(config), config]
    values = (place.get(key) for place in places for key in ("dtype", "torch_dtype"))
    return next((value for value in values if value is not None), "bfloat16")


def served_dtype(config: Mapping[str, Any]) -> str:
    """Name the dtype in which vLLM's `auto` serves a target: as published, but float32 as bfloat16."""
    return "float16" if str(dtype_of(config)) in ("float16", "half") else "bfloat16"


def model_bytes(config: Mapping[str, Any]) -> int:
    """Give the bytes per element of the model's dtype, as it is served."""
    return _bytes(dtype_of(config), "dtype", _MODEL_BYTES)


def head_dim(text: Mapping[str, Any]) -> int:
    if text.get("head_dim") is not None:
        return size(text, "head_dim")
    return max(1, size(text, "hidden_size") // size(text, "num_attention_heads"))


def size(text: Mapping[str, Any], key: str) -> int:
    value = text.get(key)
    if type(value) is int and 0 < value < _LARGEST:
        return value
    raise _bad_size(key, value, f"a positive integer below {_LARGEST}")


def layer_kinds(text: Mapping[str, Any]) -> tuple[int, int]:
    """Count the layers with gated delta nets and those with full attention."""
    size(text, "linear_num_key_heads")
    count, kinds = size(text, "num_hidden_layers"), text.get("layer_types")
    if kinds is None:
        interval = size(text, "full_attention_interval")
        linear = count - count // interval
    else:
        known = isinstance(kinds, list) and all(kind in (_LINEAR, _FULL) for kind in kinds)
        if not known or len(kinds) != count:
            raise _bad_size("layer_types", kinds, f'{count} times "{_LINEAR}" or "{_FULL}"')
        linear = kinds.count(_LINEAR)
    if not linear or linear == count:
        field = "full_attention_interval" if kinds is None else "layer_types"
        raise _bad_size(field, text.get(field), "gated delta nets and full attention, some of each")
    return linear, count - linear


def _bytes(dtype: Any, key: str, known: Mapping[str, int]) -> int:
    name = dtype.removeprefix("torch.") if isinstance(dtype, str) else None
    if name is not None and name in known:
        return known[name]
    raise _bad_size(key, dtype, " or ".join(known))


def _bad_size(key: str, value: object, allowed: str) -> UnsupportedTargetError:
    return UnsupportedTargetError(
        field=f"{key} of the target's config.json", value=value, allowed=allowed,
        remedy="correct the target's config.json, or name another",
    )  # fmt: skip


def rope_table_bytes(config: Mapping[str, Any]) -> int:
    """Compute the bytes of vLLM's table of sines and cosines, which each rank keeps whole.

    It has a row per position, four for each where images have positions of their own; 0 where the config
    of a target or a draft states no rope or no positions.
    """
    rows, rotated, *_ = rope_table(config) or (0, 0)
    return int(rows * rotated * 2)


def rope_table(config: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Describe that table: rows, width, rope. vLLM keeps equal ones once."""
    text = text_config(config)
    positions = text.get("max_position_embeddings")
    if not is_readable(text) or type(positions) is not int:
        return None
    rope, block = read_rope(text), rope_block(text)
    width = text.get("qk_rope_head_dim")
    try:
        rotated = int(width if type(width) is int else head_dim(text) * rope.partial)
    except ValueError:  # no heads are stated
        return None
    is_plain = block.get("mrope_section") is None or block.get("mrope_interleaved")
    rows = max(rope.rows(positions).values()) * (1 if is_plain else _ROWS_WITH_IMAGES)
    return rows, rotated, rope, dict(block)
