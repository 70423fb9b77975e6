"""Rotary positions: every spelling, and the length that a draft was trained for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

from tests.support.drafts import inspect, valid_draft
from vllm_eagle_ext.draft.rope_config import Rope, is_readable, read_rope


def yarn(key: str) -> dict[str, Any]:
    return {key: "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}


KINDS = ("yarn", "deepseek_yarn", "linear", "llama3", "default")
ROPE = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
ROPE |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
THETA, HALF = {"rope_theta": 5e4}, {"partial_rotary_factor": 0.5}
YARN = Rope(5e4, "yarn", 4.0, 8192)
SPELLINGS = {
    "theta": (THETA, Rope(5e4)),
    "no_scaling": (THETA | {"rope_scaling": None}, Rope(5e4)),
    "parameters": ({"rope_parameters": THETA}, Rope(5e4)),
    "parameters_with_type": (
        {"rope_parameters": {"rope_theta": 50000, "rope_type": "default"}}, Rope(5e4)
    ),
    "in_both": (THETA | {"rope_parameters": THETA}, Rope(5e4)),
    "null_theta": ({"rope_theta": None, "rope_parameters": THETA}, Rope(5e4)),
    "yarn_type": (THETA | {"rope_scaling": yarn("type")}, YARN),
    "yarn_rope_type": (THETA | {"rope_scaling": yarn("rope_type")}, YARN),
    "yarn_parameters": ({"rope_parameters": THETA | yarn("rope_type")}, YARN),
    "partial": (THETA | HALF, Rope(5e4, partial=0.5)),
    "partial_parameters": ({"rope_parameters": THETA | HALF}, Rope(5e4, partial=0.5)),
    "null_partial": (
        {"partial_rotary_factor": None, "rope_parameters": THETA | HALF}, Rope(5e4, partial=0.5)
    ),
    "rope_scaling_wins": (
        THETA | {"rope_scaling": yarn("type"), "rope_parameters": yarn("type") | {"factor": 2.0}}, YARN
    ),
    "rope_scaling_replaces_all": (
        {"rope_scaling": yarn("type"), "rope_parameters": THETA}, Rope(None, "yarn", 4.0, 8192)
    ),
    "empty_scaling": ({"rope_scaling": {}, "rope_parameters": yarn("type") | THETA}, YARN),
    "partial_of_the_block": (
        THETA | HALF | {"rope_parameters": {"partial_rotary_factor": 0.25}}, Rope(5e4, partial=0.25)
    ),
    "older_name": (
        THETA | {
            "rope_scaling": {"type": "mrope", "mrope_section": [4, 4, 8]},
            "rope_parameters": {"rope_type": "default"},
        },
        Rope(5e4, "mrope"),
    ),
    "nothing": ({"rope_scaling": None}, Rope(None)),
    "per_layer_type": ({"rope_parameters": {"full_attention": THETA}}, Rope(None)),
}  # fmt: skip


@pytest.mark.parametrize(("config", "rope"), SPELLINGS.values(), ids=SPELLINGS)
def test_rope_spellings(config, rope):
    assert is_readable(config)
    assert read_rope(config) == rope


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"rope_scaling": yarn("type")}, id="scaling"),
        pytest.param(
            {"rope_parameters": yarn("rope_type") | {"partial_rotary_factor": 0.25}}, id="parts"
        ),
        pytest.param(
            {"rope_scaling": yarn("type"), "rope_parameters": yarn("type") | {"factor": 2.0}}, id="both"
        ),
        pytest.param({"rope_scaling": {}, "rope_parameters": yarn("rope_type")}, id="empty_scaling"),
    ],
)
def test_rope_is_that_of_transformers(config):
    config = {"rope_theta": 5e4, "partial_rotary_factor": 0.5, **config}
    rope = LlamaConfig.from_dict(copy.deepcopy(config)).rope_parameters
    mine = read_rope(config)
    assert (mine.theta, mine.kind, mine.factor) == (
        rope["rope_theta"],
        rope["rope_type"],
        rope["factor"],
    )
    assert mine.partial == rope["partial_rotary_factor"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_theta": "1e6"}, "rope_theta"),
        ({"rope_theta": True}, "rope_theta"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_scaling": {"factor": -1}}, "rope_scaling.factor"),
        ({"partial_rotary_factor": 0}, "partial_rotary_factor"),
        (
            {"rope_scaling": yarn("type"), "rope_parameters": {"rope_type": "default"}},
            "rope_type and type of the rope",
        ),
        ({"rope_scaling": yarn("type") | {"rope_type": "linear"}}, "rope_type and type of the rope"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"rope_scaling": yarn("type") | {"beta_fast": "32"}}, "rope_scaling.beta_fast"),
        ({"rope_scaling": yarn("type") | {"mscale": []}}, "rope_scaling.mscale"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": ["1"]}},
            "rope_scaling.long_factor",
        ),
        ({"rope_parameters": {"full_attention": 5}}, "rope_parameters.full_attention"),
    ],
    ids=str,
)
def test_rope_problems(tmp_path, config, words):
    draft = valid_draft("native")
    del draft.config["rope_theta"]
    draft.config |= config
    (finding,) = inspect(draft, tmp_path).findings
    assert (finding.rule, is_readable(config)) == ("config_is_well_formed", False)
    assert words in finding.problem.field


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        pytest.param(None, 512, id="max_position_embeddings"),
        pytest.param(yarn("type") | {"original_max_position_embeddings": 64}, 64, id="stretched"),
    ],
)
def test_trained_length(spec_of, scaling, length):
    draft = valid_draft("native")
    draft.config["rope_scaling"] = scaling
    assert spec_of(draft).trained_length == length


@pytest.mark.parametrize(
    ("rows", "differs"),
    [
        pytest.param(2**22, {}, id="four_million"),
        pytest.param(2**24, {"target": {"max_position_embeddings": 2**24}}, id="a_longer_target"),
        pytest.param(2**24, {"engine": {"max_model_len": 2**24}}, id="longer_texts"),
    ],
)
def test_a_table_that_texts_can_need_is_reserved(tmp_path, rows, differs):
    """Each allows no row more."""
    draft = valid_draft("native")
    for positions, fires in ((rows, False), (rows + 1, True)):
        draft.config["max_position_embeddings"] = positions
        fired = inspect(draft, tmp_path, **differs).findings
        assert ("rope_table_is_bounded" in {finding.rule for finding in fired}) is fires


def tables(rope, positions):
    with set_current_vllm_config(VllmConfig()):
        built = get_rope(8, positions, rope_parameters=dict(rope), dtype=torch.float32)
    return [value for name, value in built.named_buffers() if "cos_sin" in name]


@pytest.mark.parametrize("kind", [*KINDS, "deepseek_llama_scaling", "dynamic", "ntk"])
def test_a_table_is_as_long_as_vllms(kind):
    """With more positions it grows where nothing else follows from them, as 0.33's own list says."""
    rope = ROPE | {"rope_type": kind, "max_trained_positions": 64}
    (short,), (long,) = tables(rope, 256), tables(rope, 512)
    grows = len(long) > len(short) and torch.equal(long[: len(short)], short)
    table = read_rope({"rope_scaling": rope}).table(256, is_raised=False)
    assert table == (None if grows else len(short))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_cover_vllms_table(kind):
    """Without the largest of these numbers a table of more rows than foreseen would be reserved."""
    rope = ROPE | {"rope_type": kind}
    caches = tables(rope, 256)
    foreseen = read_rope({"rope_scaling": rope}).rows(256)
    assert caches
    assert max(map(len, caches)) <= sum(foreseen.values())
    assert max(foreseen.values()) <= max(map(len, caches))
