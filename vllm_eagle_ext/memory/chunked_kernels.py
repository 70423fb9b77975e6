# SPDX-License-Identifier: Apache-2.0
"""Says which layers the chunked kernels of replay can run."""

from __future__ import annotations

LEAST_WIDTH = 16  # rows and columns of a tensor core's product
MOST_ROWS = 64
DTYPES = ("bfloat16", "float16")  # of rows; sums of three bf16 parts hold either exactly
STATE_DTYPES = ("float32", *DTYPES)


def unsupported_reason(
    key_width: int, value_width: int, rows: int, dtype: object, state_dtype: object
) -> str | None:
    """Say why the chunked kernels cannot run a layer; None: they can.

    Args:
        rows: of a request in a step, 1 + K at most.
        dtype: of rows, torch's or its name.
        state_dtype: the same, of states.
    """
    if key_width % LEAST_WIDTH or value_width % LEAST_WIDTH:
        return f"heads are {key_width} and {value_width} wide, allowed are multiples of {LEAST_WIDTH}"
    if rows > MOST_ROWS:
        return f"a step has up to {rows} rows of a request, allowed are {MOST_ROWS}"
    if str(dtype).removeprefix("torch.") not in DTYPES:
        return f"rows are {dtype}, allowed are bfloat16 and float16"
    if str(state_dtype).removeprefix("torch.") not in STATE_DTYPES:
        return f"states are {state_dtype}, allowed are float32, bfloat16 and float16"
    return None
