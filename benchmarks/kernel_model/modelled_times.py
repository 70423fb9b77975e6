# SPDX-License-Identifier: Apache-2.0
"""Modelled times of keeping recurrent states, by GPU. Written by `python -m benchmarks.kernel_model
--write`: docs/dev/gpu.md has the model and its assumptions.

Microseconds per request and layer that are likely at 32 requests, of Qwen3.6-27B's layers on one
rank. `per_token` is vLLM's own kernel for that K, the others are this package's, verify and commit.
"""

from __future__ import annotations

# Compute capability -> device -> bytes of a state's element -> scheme -> K -> time.
LIKELY_US: dict[int, dict[str, dict[int, dict[str, dict[int, float]]]]] = {
    80: {
        "A100": {
            2: {
                "sequential": {3: 5.56, 7: 9.55, 15: 16.95},
                "chunked": {3: 3.5, 7: 3.5, 15: 3.5},
                "per_token": {3: 4.67, 7: 8.47, 15: 14.86},
            },
            4: {
                "sequential": {3: 7.71, 7: 11.77, 15: 20.05},
                "chunked": {3: 5.35, 7: 5.46, 15: 5.69},
                "per_token": {3: 8.67, 7: 15.62, 15: 29.43},
            },
        },
    },
    90: {
        "H100": {
            2: {
                "sequential": {3: 3.31, 7: 5.4, 15: 9.29},
                "chunked": {3: 2.08, 7: 2.08, 15: 2.08},
                "per_token": {3: 2.92, 7: 5.26, 15: 9.04},
            },
            4: {
                "sequential": {3: 4.8, 7: 7.17, 15: 11.92},
                "chunked": {3: 3.55, 7: 3.56, 15: 3.56},
                "per_token": {3: 5.28, 7: 9.51, 15: 17.91},
            },
        },
        "H200": {
            2: {
                "sequential": {3: 3.31, 7: 5.4, 15: 9.29},
                "chunked": {3: 2.08, 7: 2.08, 15: 2.08},
                "per_token": {3: 2.92, 7: 5.26, 15: 8.12},
            },
            4: {
                "sequential": {3: 4.16, 7: 6.67, 15: 11.75},
                "chunked": {3: 3.5, 7: 3.5, 15: 3.5},
                "per_token": {3: 3.68, 7: 6.64, 15: 12.5},
            },
        },
    },
    100: {
        "B200": {
            2: {
                "sequential": {3: 2.73, 7: 4.45, 15: 7.68},
                "chunked": {3: 2.1, 7: 2.1, 15: 2.1},
                "per_token": {3: 2.42, 7: 4.54, 15: 6.71},
            },
            4: {
                "sequential": {3: 3.3, 7: 5.57, 15: 9.91},
                "chunked": {3: 3.2, 7: 3.2, 15: 3.2},
                "per_token": {3: 2.73, 7: 5.11, 15: 10.12},
            },
        },
    },
    120: {
        "RTX PRO 6000": {
            2: {
                "sequential": {3: 3.16, 7: 3.88, 15: 5.56},
                "chunked": {3: 3.16, 7: 3.29, 15: 3.55},
                "per_token": {3: 4.99, 7: 9.0, 15: 16.91},
            },
            4: {
                "sequential": {3: 6.08, 7: 6.38, 15: 8.68},
                "chunked": {3: 6.08, 7: 6.21, 15: 6.47},
                "per_token": {3: 9.87, 7: 17.78, 15: 33.48},
            },
        },
    },
}
