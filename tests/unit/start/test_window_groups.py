"""A draft with a window of its own beside the target's layers: in their KV-cache group, or refused."""

from __future__ import annotations

from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.described import changed, problems, tiny_config, with_text
from tests.support.drafting import resolve_draft
from tests.support.drafts import inspect, valid_draft
from tests.support.releases import is_release
from vllm_eagle_ext.start.apply import share_the_targets_group
from vllm_eagle_ext.start.rules.cache_groups import draft_cache_lies_in_one_group

WINDOW, FLAG = 9, "disable_hybrid_kv_cache_manager"


@pytest.mark.parametrize(("window", "is_off"), [(WINDOW, True), (None, False)])
@pytest.mark.parametrize("family", ["native", "dflash"])
def test_the_manager_of_mixed_caches_is_off_for_a_plain_target(family, window, is_off, tmp_path):
    options = {"draft_window": window} if window else {}
    config, _ = resolve_draft(tmp_path, valid_draft(family), **options)
    assert config.scheduler_config.disable_hybrid_kv_cache_manager is is_off


@pytest.mark.parametrize(("is_off", "groups"), [(True, 1), (False, 33)])
def test_groups_that_vllm_makes(is_off, groups, tmp_path):
    """32 full layers and one that is windowed."""
    module = "kv_cache_utils" if is_release("0.32") else "kv_cache_planning"
    get_kv_cache_groups = resolve_name(f"vllm.v1.core.{module}:get_kv_cache_groups")
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    config, _ = resolve_draft(tmp_path, valid_draft("native"), draft_window=WINDOW)
    config.scheduler_config.disable_hybrid_kv_cache_manager = is_off
    config.cache_config.kv_cache_layout = "NHD"
    shape: dict[str, Any] = {
        "block_size": 16, "num_kv_heads": 8, "head_size": 128, "dtype": torch.bfloat16,
    }  # fmt: skip
    specs: dict[str, Any] = {f"layer {n}": FullAttentionSpec(**shape) for n in range(32)}
    specs["draft"] = SlidingWindowSpec(**shape, sliding_window=512)
    assert len(get_kv_cache_groups(config, specs)) == groups


PLAIN = {"is_hybrid": False, "attention_chunk_size": None, "get_sliding_window": lambda: None}


@pytest.mark.parametrize(
    "changes",
    [
        {"is_hybrid": True},
        {"get_sliding_window": lambda: 4096},
        {"attention_chunk_size": 8192},
        {"text": {"layer_types": ["full_attention", "sliding_attention"]}},
        {"asked": False},
    ],
    ids=["states", "window", "chunks", "windows of some layers", "asked for"],
)
def test_the_manager_stays_as_it_is(changes, tmp_path):
    case = inspect(valid_draft("native"), tmp_path, draft_window=WINDOW).case
    given = {"text": {}, "asked": None} | PLAIN | changes
    asked = SimpleNamespace(**{FLAG: given["asked"]})
    text = SimpleNamespace(to_dict=lambda: given["text"])
    share_the_targets_group(asked, SimpleNamespace(hf_text_config=text, **given), case)
    assert getattr(asked, FLAG) is given["asked"]


@pytest.mark.parametrize(
    ("kinds", "fits"), [((22, 4), True), ((22, 1), False), ((3, 2), True), ((36, 0), True)]
)
def test_layers_of_a_windowed_draft_in_groups(kinds, fits, tmp_path):
    case = inspect(valid_draft("dflash"), tmp_path, draft_window=WINDOW).case
    assert case.spec.num_layers == 2
    sliding, full = kinds
    kinds = ["sliding_attention"] * sliding + ["full_attention"] * full
    config = with_text(tiny_config(), layer_types=kinds)
    fired = problems(draft_cache_lies_in_one_group, config, case)
    assert not problems(draft_cache_lies_in_one_group, changed(config, use_v2_model_runner=True), case)
    if fits:
        assert not fired
        return
    (problem,) = fired
    assert "in groups of 1" in problem.allowed
    assert problem.remedy.startswith("leave the option out")
