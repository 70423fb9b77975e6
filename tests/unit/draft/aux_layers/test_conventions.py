"""Layer ids to layer_ids: every rule and its order."""

from __future__ import annotations

import pytest

from tests.unit.draft.aux_layers.ids import (
    ANGELSLIM,
    KEY,
    MODELOPT,
    OUTPUTS,
    SHORT,
    dflash,
    nested,
    resolve,
)
from vllm_eagle_ext.draft.layer_ids import resolve_aux_layers
from vllm_eagle_ext.families.eagle3.family import NATIVE

pytestmark = pytest.mark.promise("layer ids in every convention that drafts are published with")


@pytest.mark.parametrize(
    ("config", "layer_ids", "words"),
    [
        pytest.param({}, (2, 6, 9), "names no layers", id="no_ids"),
        pytest.param({KEY: [], "eagle_config": None}, (2, 6, 9), "default", id="empty_list"),
        pytest.param(nested(1, 3, 5, 7, 9), (2, 4, 6, 8, 10), "output", id="nested_from_1"),
        pytest.param(nested(2, 6, 8), (3, 7, 9), "output", id="nested_not_from_1"),
        pytest.param(nested(0, 11), (1, 12), "output", id="nested_first_and_last_layer"),
        pytest.param({KEY: [2, 6, 9]}, (2, 6, 9), "top level", id="top_level"),
        pytest.param({KEY: [1, 6, 9]}, (1, 6, 9), "top level", id="top_level_from_1"),
        pytest.param({KEY: [0, 6]}, (0, 6), "top level", id="embeddings"),
        pytest.param({SHORT: [2, 6, 9]}, (2, 6, 9), "top level", id="short_key"),
        pytest.param({ANGELSLIM: [1, 5, 8]}, (2, 6, 9), "AngelSlim", id="angelslim"),
        pytest.param({ANGELSLIM: [1, 5, 11]}, (2, 6, 12), "AngelSlim", id="angelslim_last_layer"),
        pytest.param(nested(6, 9, 12), (6, 9, 12), "contain N=12", id="nested_contains_n"),
        pytest.param({KEY: [6, 12]}, (6, 12), "contain N=12", id="top_level_contains_n"),
        pytest.param({KEY: [2, 4], **nested(1, 3)}, (2, 4), "top level", id="top_is_nested_plus_1"),
        pytest.param({KEY: [2, 4], **nested(2, 4)}, (2, 4), "top level", id="lists_equal"),
        pytest.param({KEY: [2, 12], **nested(1, 11)}, (2, 12), "N=12", id="top_plus_1_contains_n"),
        pytest.param({KEY: [2, 4], SHORT: [2, 4]}, (2, 4), "top level", id="two_keys_at_top_level"),
        pytest.param({KEY: None, **nested(1, 3)}, (2, 4), "output", id="null_counts_as_absent"),
    ],
)
def test_llama_type(config, layer_ids, words):
    layers = resolve(config)
    assert layers.layer_ids == layer_ids
    assert words in layers.rule
    assert layers.order == tuple(range(len(layer_ids)))


@pytest.mark.parametrize(
    ("config", "layer_ids", "words"),
    [
        pytest.param(nested(1, 5, 9), (2, 6, 10), "output", id="from_1"),
        pytest.param(nested(2, 6, 9), (2, 6, 9), "MLA", id="not_from_1"),
        pytest.param(nested(1, 6, 12), (1, 6, 12), "contain N", id="from_1_with_n"),
        pytest.param({KEY: [1, 6]}, (1, 6), "top level", id="top_level_from_1"),
        pytest.param({KEY: [2, 6], **nested(2, 6)}, (2, 6), "top level", id="equal"),
        pytest.param({}, (2, 6, 9), "default", id="no_ids"),
    ],
)
def test_mla(config, layer_ids, words):
    layers = resolve(config, "mla")
    assert layers.layer_ids == layer_ids
    assert words in layers.rule


@pytest.mark.parametrize(
    ("config", "family"),
    [
        pytest.param({KEY: [1, 6, 9]}, "native", id="eagle3"),
        pytest.param({KEY: [1, 6, 9]}, "p-eagle", id="p_eagle"),
        pytest.param({SHORT: [1, 6, 9]}, "dflash", id="dflash"),
        pytest.param(nested(1, 6, 9), "native", id="nested"),
    ],
)
def test_speculators_writes_ids_of_inputs(config, family):
    layers = resolve(config, family, is_speculators=True)
    assert layers.layer_ids == layers.published_ids == (1, 6, 9)
    assert "speculators" in layers.rule


@pytest.mark.parametrize(
    ("config", "layer_ids"),
    [
        pytest.param(dflash(1, 6, 11), (2, 7, 12), id="z_lab"),
        pytest.param({OUTPUTS: [1, 6, 11]}, (2, 7, 12), id="torchspec_top_level"),
        pytest.param({OUTPUTS: [1, 6], **dflash(1, 6)}, (2, 7), id="in_both_places"),
        pytest.param({SHORT: [2, 7, 12], **dflash(1, 6, 11)}, (2, 7, 12), id="nemotron"),
        pytest.param({KEY: [2, 7], **dflash(1, 6)}, (2, 7), id="long_key"),
    ],
)
def test_dflash(config, layer_ids):
    assert resolve(config, "dflash").layer_ids == layer_ids


@pytest.mark.parametrize(
    ("config", "family", "words"),
    [
        pytest.param(
            {KEY: [1, 3], **nested(2, 4)}, "native", (KEY, "the same layers"), id="top_is_less"
        ),
        pytest.param({KEY: [3, 5], **nested(1, 3)}, "native", ("[3, 5], [1, 3]",), id="plus_2"),
        pytest.param({KEY: [2, 4, 6], **nested(1, 3)}, "native", ("the same layers",), id="counts"),
        pytest.param({KEY: [4, 2], **nested(1, 3)}, "native", ("the same layers",), id="order"),
        pytest.param({KEY: [2, 4], SHORT: [3, 5]}, "native", (SHORT,), id="two_keys_at_top_level"),
        pytest.param({SHORT: [2, 9], **dflash(1, 6)}, "dflash", (SHORT, OUTPUTS), id="nemotron"),
        pytest.param({OUTPUTS: [1, 9], **dflash(1, 6)}, "dflash", (OUTPUTS,), id="two_places"),
        pytest.param({OUTPUTS: [2, 7], **dflash(1, 6)}, "dflash", (OUTPUTS,), id="two_places_plus_1"),
        pytest.param({SHORT: [2, 7], **dflash(2, 7)}, "dflash", (SHORT, OUTPUTS), id="equal_to_outputs"),
        pytest.param({}, "dflash", (f"dflash_config.{OUTPUTS}", "missing"), id="dflash_without_ids"),
        pytest.param(dflash(), "dflash", ("a list of integers",), id="dflash_empty"),
        pytest.param(dflash(1, 12), "dflash", ("[2, 13]", "0 to N=12"), id="outputs_with_n"),
        pytest.param(nested(1, 1, 3), "native", ("each layer once", "[2, 2, 4]"), id="repeated"),
        pytest.param({KEY: [2, 13]}, "native", ("[2, 13]", "0 to N=12"), id="beyond_n"),
        pytest.param(nested(1, 13), "mla", ("[2, 14]", "0 to N=12"), id="beyond_n_as_output"),
        pytest.param({KEY: [-1, 3]}, "native", ("[-1, 3]", "0 to N=12"), id="negative"),
        pytest.param(nested(-2, 3), "native", ("[-1, 4]", "0 to N=12"), id="negative_output"),
        pytest.param({KEY: [3, 3, 20]}, "native", ("0 to N=12 and each layer once",), id="both"),
        pytest.param({KEY: ["1", 3]}, "native", (KEY, "list of integers"), id="text"),
        pytest.param({KEY: [True, 3]}, "native", ("[True, 3]", "list of integers"), id="truth"),
        pytest.param({KEY: [1.0, 3]}, "native", ("[1.0, 3]", "list of integers"), id="float"),
        pytest.param({KEY: 3}, "native", ("list of integers",), id="no_list"),
        pytest.param({KEY: [[1], 3]}, "native", ("list of integers",), id="nested_list"),
        pytest.param({"eagle_config": {KEY: "1,3"}}, "mla", ("eagle_config",), id="nested_text"),
    ],
)
def test_refused(config, family, words):
    (problem,) = resolve(config, family)
    for word in words:
        assert word in str(problem)


def test_speculators_ids_beyond_n():
    (problem,) = resolve({KEY: [2, 13]}, is_speculators=True)
    assert "speculators" in problem.remedy


@pytest.mark.parametrize(
    ("ids", "layer_ids", "order"),
    [
        pytest.param((1, 5, 3), (2, 4, 6), (0, 2, 1), id="swapped"),
        pytest.param((9, 5, 1), (2, 6, 10), (2, 1, 0), id="reversed"),
        pytest.param((5, 9, 1), (2, 6, 10), (2, 0, 1), id="rotated"),
    ],
)
@pytest.mark.parametrize(
    ("writer", "family", "is_certain"),
    [
        pytest.param(dflash, "dflash", False, id="z_lab"),
        pytest.param(lambda *ids: {OUTPUTS: list(ids)}, "dflash", False, id="torchspec_dflash"),
        pytest.param(lambda *ids: {ANGELSLIM: list(ids)}, "native", True, id="angelslim"),
        pytest.param(lambda *ids: {ANGELSLIM: list(ids), **dflash(*ids)}, "dflash", True, id="both"),
    ],
)
def test_ids_of_states_from_hugging_face_keep_their_order_for_fc(
    ids, layer_ids, order, writer, family, is_certain
):
    layers = resolve(writer(*ids), family)
    assert (layers.layer_ids, layers.order, layers.published_ids) == (layer_ids, order, ids)
    assert layers.is_reordered
    assert (layers.blocks.follows, not layers.blocks.doubt) == ("list", is_certain)
    in_order = resolve(writer(*sorted(ids)), family)
    assert (in_order.is_reordered, in_order.blocks) == (False, None)


@pytest.mark.parametrize(
    ("config", "is_speculators", "is_certain"),
    [
        pytest.param({KEY: [9, 2, 6]}, True, True, id="speculators"),
        pytest.param({SHORT: [9, 2, 6]}, True, True, id="speculators_dflash"),
        pytest.param({KEY: [9, 2, 6]}, False, False, id="top_level"),
        pytest.param(nested(8, 1, 5), False, False, id="specforge"),
        pytest.param(MODELOPT | nested(8, 1, 5), False, False, id="switches_elsewhere"),
        pytest.param({"eagle_config": {KEY: [8, 1, 5], **MODELOPT}}, False, True, id="modelopt"),
    ],
)
def test_blocks_of_states_captured_on_the_way_follow_the_layers(config, is_speculators, is_certain):
    layers = resolve(config, is_speculators=is_speculators)
    assert (layers.layer_ids, layers.listed) == ((2, 6, 9), (9, 2, 6))
    assert (layers.order, layers.is_reordered) == ((0, 1, 2), False)
    assert (layers.blocks.follows, not layers.blocks.doubt) == ("layers", is_certain)


def test_the_option_lists_the_blocks_whatever_wrote_the_file():
    layers = resolve({KEY: [9, 2, 6]}, is_speculators=True, override=[9, 2, 6])
    assert (layers.layer_ids, layers.order) == ((2, 6, 9), (1, 2, 0))


def test_a_default_that_is_out_of_order_is_refused():
    """2, N//2, N-3 of a target of three layers."""
    (problem,) = resolve_aux_layers({}, num_target_layers=1, convention=NATIVE.id_convention)
    assert "0 to N=1" in str(problem)
    layers = resolve_aux_layers({}, num_target_layers=3, convention=NATIVE.id_convention)
    assert layers.order == (0, 1, 2)


@pytest.mark.parametrize(
    ("config", "override", "layer_ids", "order"),
    [
        pytest.param(nested(1, 3), "input", (1, 3), (0, 1), id="input"),
        pytest.param({KEY: [1, 3]}, "output", (2, 4), (0, 1), id="output"),
        pytest.param(nested(3, 12), "input", (3, 12), (0, 1), id="input_with_n"),
        pytest.param(dflash(1, 3), "input", (1, 3), (0, 1), id="input_for_dflash"),
        pytest.param({}, "input", (2, 6, 9), (0, 1, 2), id="convention_without_ids"),
        pytest.param(nested(1, 3), [0, 12], (0, 12), (0, 1), id="list"),
        pytest.param(nested(1, 3), (9, 2, 6), (2, 6, 9), (1, 2, 0), id="unsorted_list"),
        pytest.param({}, [4], (4,), (0,), id="list_without_ids"),
        pytest.param({KEY: "damaged"}, [2, 4], (2, 4), (0, 1), id="list_for_damaged_ids"),
        pytest.param(
            {KEY: [1, 3], **nested(5, 7)}, [2, 4], (2, 4), (0, 1), id="list_for_a_contradiction"
        ),
    ],
)
def test_option(config, override, layer_ids, order):
    layers = resolve(config, override=override)
    assert (layers.layer_ids, layers.order) == (layer_ids, order)
    assert "option" in layers.rule or layers.published_ids is None


def test_option_wins_over_the_speculators_rule():
    assert resolve({KEY: [1, 3]}, is_speculators=True, override="output").layer_ids == (2, 4)


def test_option_keeps_the_ids_of_the_config_for_the_log():
    assert resolve(nested(1, 3), override=[5]).published_ids == (1, 3)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        pytest.param([], "at least one layer", id="empty"),
        pytest.param([2, 2], "each layer once", id="repeated"),
        pytest.param([2, 13], "0 to N=12", id="beyond_n"),
    ],
)
def test_option_refused(override, words):
    (problem,) = resolve(nested(1, 3), override=override)
    assert words in str(problem)
