"""Layer ids to boundaries: every rule and its order, and what holds for any list."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_eagle_ext.checkpoint.aux_layers import AuxLayers, resolve_aux_layers

KEY = "eagle_aux_hidden_state_layer_ids"
SHORT = "aux_hidden_state_layer_ids"
OUTPUTS = "target_layer_ids"
N = 12


def resolve(config: dict[str, Any], family: str = "native", **options: Any) -> Any:
    return resolve_aux_layers(config, num_target_layers=N, family=family, **options)


def nested(*ids: int) -> dict[str, Any]:
    return {"eagle_config": {KEY: list(ids)}}


def dflash(*ids: int) -> dict[str, Any]:
    return {"dflash_config": {OUTPUTS: list(ids)}}


@pytest.mark.parametrize(
    ("config", "boundaries", "words"),
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
        pytest.param(nested(6, 9, 12), (6, 9, 12), "contain N=12", id="nested_contains_n"),
        pytest.param({KEY: [6, 12]}, (6, 12), "contain N=12", id="top_level_contains_n"),
        pytest.param({KEY: [2, 4], **nested(1, 3)}, (2, 4), "top level", id="top_is_nested_plus_1"),
        pytest.param({KEY: [2, 4], **nested(2, 4)}, (2, 4), "top level", id="lists_equal"),
        pytest.param({KEY: [2, 12], **nested(1, 11)}, (2, 12), "N=12", id="top_plus_1_contains_n"),
        pytest.param({KEY: [2, 4], SHORT: [2, 4]}, (2, 4), "top level", id="two_keys_at_top_level"),
        pytest.param({KEY: None, **nested(1, 3)}, (2, 4), "output", id="null_counts_as_absent"),
    ],
)
def test_llama_type(config, boundaries, words):
    layers = resolve(config)
    assert layers.boundaries == boundaries
    assert words in layers.rule
    assert layers.order == tuple(range(len(boundaries)))


@pytest.mark.parametrize(
    ("config", "boundaries", "words"),
    [
        pytest.param(nested(1, 5, 9), (2, 6, 10), "output", id="from_1"),
        pytest.param(nested(2, 6, 9), (2, 6, 9), "MLA", id="not_from_1"),
        pytest.param(nested(1, 6, 12), (1, 6, 12), "contain N", id="from_1_with_n"),
        pytest.param({KEY: [1, 6]}, (1, 6), "top level", id="top_level_from_1"),
        pytest.param({KEY: [2, 6], **nested(2, 6)}, (2, 6), "top level", id="equal"),
        pytest.param({}, (2, 6, 9), "default", id="no_ids"),
    ],
)
def test_mla(config, boundaries, words):
    layers = resolve(config, "mla")
    assert layers.boundaries == boundaries
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
def test_speculators_writes_boundaries(config, family):
    layers = resolve(config, family, is_speculators=True)
    assert layers.boundaries == layers.given_ids == (1, 6, 9)
    assert "speculators" in layers.rule


@pytest.mark.parametrize(
    ("config", "boundaries"),
    [
        pytest.param(dflash(1, 6, 11), (2, 7, 12), id="z_lab"),
        pytest.param({OUTPUTS: [1, 6, 11]}, (2, 7, 12), id="torchspec_top_level"),
        pytest.param({OUTPUTS: [1, 6], **dflash(1, 6)}, (2, 7), id="in_both_places"),
        pytest.param({SHORT: [2, 7, 12], **dflash(1, 6, 11)}, (2, 7, 12), id="nemotron"),
        pytest.param({KEY: [2, 7], **dflash(1, 6)}, (2, 7), id="long_key"),
    ],
)
def test_dflash(config, boundaries):
    assert resolve(config, "dflash").boundaries == boundaries


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
        pytest.param({}, "dflash", (f"dflash_config.{OUTPUTS}", "None"), id="dflash_without_ids"),
        pytest.param(dflash(), "dflash", ("a list of integers",), id="dflash_empty"),
        pytest.param(dflash(1, 12), "dflash", ("[2, 13]", "0 to N=12"), id="outputs_with_n"),
        pytest.param(nested(1, 1, 3), "native", ("each boundary once", "[2, 2, 4]"), id="repeated"),
        pytest.param({KEY: [2, 13]}, "native", ("[2, 13]", "0 to N=12"), id="beyond_n"),
        pytest.param(nested(1, 13), "mla", ("[2, 14]", "0 to N=12"), id="beyond_n_as_output"),
        pytest.param({KEY: [-1, 3]}, "native", ("[-1, 3]", "0 to N=12"), id="negative"),
        pytest.param(nested(-2, 3), "native", ("[-1, 4]", "0 to N=12"), id="negative_output"),
        pytest.param({KEY: [3, 3, 20]}, "native", ("0 to N=12 and each boundary once",), id="both"),
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
    ("ids", "boundaries", "order"),
    [
        pytest.param((1, 5, 3), (2, 4, 6), (0, 2, 1), id="swapped"),
        pytest.param((9, 5, 1), (2, 6, 10), (2, 1, 0), id="reversed"),
        pytest.param((5, 9, 1), (2, 6, 10), (2, 0, 1), id="rotated"),
    ],
)
def test_unsorted_ids_keep_their_order_for_fc(ids, boundaries, order):
    layers = resolve(nested(*ids))
    assert (layers.boundaries, layers.order, layers.given_ids) == (boundaries, order, ids)
    assert layers.is_reordered
    assert not resolve(nested(*sorted(ids))).is_reordered


@pytest.mark.parametrize(
    ("config", "override", "boundaries", "order"),
    [
        pytest.param(nested(1, 3), "boundary", (1, 3), (0, 1), id="boundary"),
        pytest.param({KEY: [1, 3]}, "output", (2, 4), (0, 1), id="output"),
        pytest.param(nested(3, 12), "boundary", (3, 12), (0, 1), id="boundary_with_n"),
        pytest.param(dflash(1, 3), "boundary", (1, 3), (0, 1), id="boundary_for_dflash"),
        pytest.param({}, "boundary", (2, 6, 9), (0, 1, 2), id="convention_without_ids"),
        pytest.param(nested(1, 3), [0, 12], (0, 12), (0, 1), id="list"),
        pytest.param(nested(1, 3), (9, 2, 6), (2, 6, 9), (1, 2, 0), id="unsorted_list"),
        pytest.param({}, [4], (4,), (0,), id="list_without_ids"),
        pytest.param({KEY: "damaged"}, [2, 4], (2, 4), (0, 1), id="list_for_damaged_ids"),
        pytest.param(
            {KEY: [1, 3], **nested(5, 7)}, [2, 4], (2, 4), (0, 1), id="list_for_a_contradiction"
        ),
    ],
)
def test_option(config, override, boundaries, order):
    layers = resolve(config, override=override)
    assert (layers.boundaries, layers.order) == (boundaries, order)
    assert "option" in layers.rule or layers.given_ids is None


def test_option_wins_over_the_speculators_rule():
    assert resolve({KEY: [1, 3]}, is_speculators=True, override="output").boundaries == (2, 4)


def test_option_keeps_the_ids_of_the_config_for_the_log():
    assert resolve(nested(1, 3), override=[5]).given_ids == (1, 3)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        pytest.param([], "at least one boundary", id="empty"),
        pytest.param([2, 2], "each boundary once", id="repeated"),
        pytest.param([2, 13], "0 to N=12", id="beyond_n"),
    ],
)
def test_option_refused(override, words):
    (problem,) = resolve(nested(1, 3), override=override)
    assert words in str(problem)


FAMILIES = st.sampled_from(["native", "post-norm", "gated", "mla", "p-eagle", "dflash"])
CONVENTIONS = st.sampled_from(["auto", "boundary", "output"])
WRITERS = st.sampled_from(
    [
        lambda ids: {KEY: ids},
        lambda ids: {SHORT: ids},
        lambda ids: nested(*ids),
        lambda ids: dflash(*ids),
        lambda ids: {OUTPUTS: ids},
    ]
)
# Distinct ids that every convention keeps within 0..N.
SETS = st.lists(st.integers(0, N - 1), min_size=1, unique=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
properties = settings(max_examples=100, deadline=None)


@properties
@given(
    WRITERS, st.lists(st.integers(-3, N + 3)), FAMILIES, st.booleans(), CONVENTIONS, st.integers(1, N)
)
def test_boundaries_ascend_within_the_target(writer, ids, family, is_speculators, convention, layers):
    found = resolve_aux_layers(
        writer(ids),
        num_target_layers=layers,
        family=family,
        is_speculators=is_speculators,
        override=convention,
    )
    if isinstance(found, list):
        assert found
        return
    assert list(found.boundaries) == sorted(set(found.boundaries))
    assert 0 <= found.boundaries[0] <= found.boundaries[-1] <= layers
    assert sorted(found.order) == list(range(len(found.boundaries)))


@properties
@given(WRITERS, SETS, FAMILIES, st.booleans(), CONVENTIONS)
def test_order_leads_back_to_the_given_ids(writer, ids, family, is_speculators, convention):
    found = resolve(writer(ids), family, is_speculators=is_speculators, override=convention)
    shifts = {found.boundaries[k] - ids[block] for k, block in enumerate(found.order)}
    assert shifts in ({0}, {1})
    assert found.given_ids == tuple(ids)
    assert found.is_reordered == (ids != sorted(ids))


@properties
@given(WRITERS, SETS.flatmap(lambda ids: st.tuples(st.just(ids), st.permutations(ids))), FAMILIES)
def test_permuting_the_ids_permutes_the_order(writer, lists, family):
    # The first id of an MLA draft tells the convention.
    family = "native" if family == "mla" else family
    first, second = (resolve(writer(list(ids)), family) for ids in lists)
    assert first.boundaries == second.boundaries
    assert [lists[0][block] for block in first.order] == [lists[1][block] for block in second.order]


@properties
@given(WRITERS, SETS, FAMILIES)
def test_output_is_boundary_plus_1(writer, ids, family):
    boundary = resolve(writer(ids), family, override="boundary")
    output = resolve(writer(ids), family, override="output")
    assert output.boundaries == tuple(b + 1 for b in boundary.boundaries)
    assert output.order == boundary.order


@properties
@given(st.lists(st.integers(-3, N + 3)), JSON)
def test_a_list_of_the_option_is_taken_or_refused_as_it_is(override, ids):
    found = resolve({KEY: ids}, override=override)
    is_valid = (
        bool(override) and len(set(override)) == len(override) and set(override) <= {*range(N + 1)}
    )
    assert isinstance(found, AuxLayers) == is_valid
    if is_valid:
        assert [found.boundaries[found.order.index(k)] for k in range(len(override))] == override


@settings(max_examples=200, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            KEY: JSON,
            SHORT: JSON,
            OUTPUTS: JSON,
            "eagle_config": JSON | st.fixed_dictionaries({KEY: JSON}),
            "dflash_config": JSON | st.fixed_dictionaries({OUTPUTS: JSON}),
        },
    ),
    FAMILIES,
    st.booleans(),
    CONVENTIONS | st.just([2, 4]),
)
def test_no_value_raises(config, family, is_speculators, override):
    found = resolve(config, family, is_speculators=is_speculators, override=override)
    assert isinstance(found, AuxLayers) or [str(problem) for problem in found]
