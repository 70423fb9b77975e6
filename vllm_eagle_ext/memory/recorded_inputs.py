# SPDX-License-Identifier: Apache-2.0
"""The size of a record. Pure Python: the plan asks for it without torch."""

from __future__ import annotations


def record_width(key_heads: int, key_dim: int, value_heads: int, value_dim: int) -> int:
    """Elements of one row's record: key, value, a, b."""
    return key_heads * key_dim + value_heads * value_dim + 2 * value_heads
