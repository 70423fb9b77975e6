"""Ways to break a replay, for the tests that must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BREAKAGES = ("one row short", "stale window", "other beta", "no commit")
NO_BOUNDARY = "no boundary"  # seen where a prefix cache hands out the state at a block's edge


def apply(how: str, set_attribute: Callable[[Any, str, Any], None]) -> None:
    """`set_attribute`: that of pytest's monkeypatch, which undoes it."""
    from vllm_eagle_ext.hybrid.ops import cpu

    plan, rows = cpu.plan, cpu._rows

    def short(*args: Any) -> None:
        plan(*args)
        args[-1].lengths.sub_(1).clamp_(min=1)

    def without_boundary(*args: Any) -> None:
        plan(*args)
        args[-1].boundary.zero_()

    def changed(*args: Any) -> Any:
        right = rows(*args)
        return right._replace(b=right.b + 3)

    set_attribute(
        *{
            "one row short": (cpu, "plan", short),
            "stale window": (cpu, "_windows", lambda *_: []),
            "other beta": (cpu, "_rows", changed),
            NO_BOUNDARY: (cpu, "plan", without_boundary),
            "no commit": (cpu.Commit, "__call__", lambda *_: None),
        }[how]
    )


def state_pages(runner: Any) -> dict[str, Any]:
    from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
    from vllm.v1.kv_cache_interface import MambaSpec

    config = runner.kv_cache_config
    found: dict[str, Any] = {"blocks": config.num_blocks, "groups": []}
    found["requests_fit"] = get_max_concurrency_for_kv_cache_config(runner.vllm_config, config)
    for group in runner.kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        if isinstance(spec, MambaSpec):
            found["groups"].append(
                {
                    "layers": len(group.layer_names),
                    "page_bytes": spec.page_size_bytes,
                    "pages_per_request": 1 + spec.num_speculative_blocks,
                    "shapes": [list(shape) for shape in spec.shapes],
                    "dtypes": [str(dtype) for dtype in spec.dtypes],
                }
            )
    return found
