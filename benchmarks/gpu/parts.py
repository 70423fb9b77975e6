# SPDX-License-Identifier: Apache-2.0
"""Print, as one line of JSON, what this machine has and which compiled parts of vLLM load."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import machine
from vllm_eagle_ext.measure.engine.machine import gpus
from vllm_eagle_ext.replay.self_check.compared import error_line


def of_vllm() -> dict[str, Any]:
    import vllm
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    return {
        "platform": type(current_platform).__name__,
        "triton": HAS_TRITON,
        "flash_attention_3": any(Path(vllm.__file__).parent.glob("vllm_flash_attn/_vllm_fa3_C*")),
        "flashinfer": find_spec("flashinfer") is not None,
        "fused_gdn": hasattr(torch.ops._C, "fused_gdn_decode_post_conv_mtp"),
    }


def norm_error() -> float:
    """Return the relative error of vLLM's compiled RMS norm on 64 rows in bf16, by fp64."""
    from vllm import _custom_ops as ops

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, weight = (torch.randn(*size, 5120, device=device).bfloat16() for size in ((64,), ()))
    out = torch.full_like(rows, float("nan"))
    ops.rms_norm(out, rows, weight, 1e-6)
    exact = rows.double() * torch.rsqrt(rows.double().pow(2).mean(-1, keepdim=True) + 1e-6)
    exact *= weight.double()
    return float((out.double() - exact).norm() / exact.norm())


def main() -> None:
    parts: dict[str, Callable[[], Any]] = {
        "machine": machine,
        "gpus": gpus,
        "vllm": of_vllm,
        "rms_norm_error": norm_error,
    }
    report: dict[str, Any] = {}
    for name, ask in parts.items():
        try:
            report[name] = ask()
        except Exception as error:  # noqa: BLE001 - the other parts are worth having
            report[name] = f"failed: {error_line(error)}"
    lines = [f"{name}: {value}" for name, value in report.items()]
    print(json.dumps(report | {"lines": lines}))


if __name__ == "__main__":
    main()
