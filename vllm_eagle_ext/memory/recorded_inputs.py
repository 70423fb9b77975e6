# SPDX-License-Identifier: Apache-2.0
"""The size of what replay records of a verified token: the inputs of its recurrence.

Pure Python, because a plan asks for it without torch.
"""

from __future__ import annotations


def record_width(key_heads: int, key_dim: int, value_heads: int, value_dim: int) -> int:
    """Count the elements recorded for one verified token in one layer: key, value, a and b."""
    return key_heads * key_dim + value_heads * value_dim + 2 * value_heads
