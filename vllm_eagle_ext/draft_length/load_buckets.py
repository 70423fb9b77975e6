# SPDX-License-Identifier: Apache-2.0
"""Divides loads into buckets, in which one length is best: by requests and by their context."""

from __future__ import annotations

Key = tuple[int, int]
_MARGIN = 8  # of a range: so much beyond an edge still belongs to the bucket that was entered


def bucket_of(requests: int, context: int) -> Key:
    """Return the power of two in which the requests lie, and the power of four of their context.

    Args:
        context: tokens of all requests together, which grow with every step.
    """
    return max(requests, 1).bit_length() - 1, (max(context, 1).bit_length() - 1) // 2


def ranges_of(key: Key) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the least and the most requests of a bucket, and tokens of context."""
    requests, context = 1 << key[0], 1 << 2 * key[1]
    return (requests, 2 * requests - 1), (context, 4 * context - 1)


def stays_in(key: Key, requests: int, context: int) -> bool:
    """Find out whether a load is in the bucket or so little beyond an edge that it may soon be back."""
    return all(
        least - least // _MARGIN <= max(value, 1) <= most + least // _MARGIN
        for value, (least, most) in zip((requests, context), ranges_of(key), strict=True)
    )
