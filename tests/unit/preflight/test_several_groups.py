"""Which targets and drafts have KV-cache groups of several kinds, by their configs and by vLLM."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

import pytest
import torch

from tests.support.drafting import resolve_draft
from tests.support.drafts import inspect, valid_draft
from tests.support.releases import is_release
from vllm_eagle_ext.preflight.kv_groups import has_several_groups

FULL, WINDOWED, WINDOW = "full_attention", "sliding_attention", 64
PAIRS = [
    ([FULL] * 4, [FULL], False),
    ([FULL] * 4, [FULL, FULL], False),
    ([WINDOWED] * 4, [WINDOWED], False),
    ([FULL, WINDOWED] * 2, [FULL], True),
    ([WINDOWED] * 4, [FULL], True),
    ([FULL] * 4, [WINDOWED, WINDOWED], True),
]


def spec_of(layers: list[str], folder: Any) -> Any:
    draft = valid_draft("dflash")
    draft.config["num_hidden_layers"] = 2
    draft.config["layer_types"] = (layers * 2)[:2]
    if WINDOWED in layers:
        draft.config["sliding_window"] = WINDOW
    return inspect(draft, folder).spec


@pytest.mark.parametrize("manager_off", [False, True])
@pytest.mark.parametrize(("target", "draft", "several"), PAIRS)
def test_as_vllm_groups_such_layers(target, draft, several, manager_off, tmp_path):
    """Heads of another size are another shape, not another kind, and lie in the target's group."""
    module = "kv_cache_utils" if is_release("0.32") else "kv_cache_planning"
    get_kv_cache_groups = resolve_name(f"vllm.v1.core.{module}:get_kv_cache_groups")
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    config, _ = resolve_draft(tmp_path / "config", valid_draft("native"))
    config.scheduler_config.disable_hybrid_kv_cache_manager = manager_off
    config.cache_config.kv_cache_layout = "NHD"

    def layer(kind: str, heads: int) -> Any:
        shape: dict[str, Any] = {
            "block_size": 16, "num_kv_heads": heads, "head_size": 128, "dtype": torch.bfloat16,
        }  # fmt: skip
        return (
            FullAttentionSpec(**shape) if kind == FULL else SlidingWindowSpec(**shape, sliding_window=64)
        )

    specs = {f"layer {n}": layer(kind, 8) for n, kind in enumerate(target)}
    specs |= {f"draft {n}": layer(kind, 8) for n, kind in enumerate(draft)}
    groups = get_kv_cache_groups(config, specs)
    assert (len(groups) > 1) is (several and not manager_off)
    text = {"layer_types": target, "sliding_window": WINDOW}
    found = has_several_groups(text, spec_of(draft, tmp_path / "draft"), manager_off=manager_off)
    assert found is (len(groups) > 1)


@pytest.mark.parametrize(
    ("text", "several"),
    [
        ({}, False),
        ({"sliding_window": 4096}, True),
        ({"sliding_window": 4096, "use_sliding_window": False}, False),
        ({"sliding_window": None}, False),
        ({"layer_types": ["linear_attention", FULL]}, True),
        ({"layer_types": ["chunked_attention", FULL]}, True),
    ],
)
def test_targets_that_state_it_otherwise(text, several, tmp_path):
    assert has_several_groups(text, spec_of([FULL], tmp_path), manager_off=False) is several


def test_recurrent_states_are_a_kind_of_their_own_whatever_the_manager(tmp_path):
    text = {"layer_types": ["linear_attention", FULL]}
    assert has_several_groups(text, spec_of([FULL], tmp_path), manager_off=True)


def test_a_draft_with_a_window_of_its_own_shares_the_group_of_a_plain_target(tmp_path):
    spec = inspect(valid_draft("native"), tmp_path, draft_window=WINDOW).spec
    assert not has_several_groups({"layer_types": [FULL]}, spec, manager_off=False)
    assert has_several_groups({"layer_types": [FULL, WINDOWED]}, spec, manager_off=False)
