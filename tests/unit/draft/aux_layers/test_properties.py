"""Layer ids to layer_ids: what holds for any list."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.draft.aux_layers.ids import ANGELSLIM, KEY, OUTPUTS, SHORT, N, dflash, nested, resolve
from vllm_eagle_ext.draft import registry
from vllm_eagle_ext.draft.layer_ids import AuxLayers, resolve_aux_layers

FAMILIES = st.sampled_from(["native", "post-norm", "gated", "mla", "p-eagle", "dflash"])
CONVENTIONS = st.sampled_from(["auto", "input", "output"])
WRITERS = st.sampled_from(
    [
        lambda ids: {KEY: ids},
        lambda ids: {SHORT: ids},
        lambda ids: nested(*ids),
        lambda ids: dflash(*ids),
        lambda ids: {OUTPUTS: ids},
        lambda ids: {ANGELSLIM: ids},
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
def test_aux_layers_ascend_within_the_target(writer, ids, family, is_speculators, convention, layers):
    found = resolve_aux_layers(
        writer(ids),
        num_target_layers=layers,
        convention=registry.families()[family].id_convention,
        is_speculators=is_speculators,
        override=convention,
    )
    if isinstance(found, list):
        assert found
        return
    assert list(found.layer_ids) == sorted(set(found.layer_ids))
    assert 0 <= found.layer_ids[0] <= found.layer_ids[-1] <= layers
    assert sorted(found.order) == list(range(len(found.layer_ids)))


@properties
@given(WRITERS, SETS, FAMILIES, st.booleans(), CONVENTIONS)
def test_order_leads_back_to_the_given_ids(writer, ids, family, is_speculators, convention):
    found = resolve(writer(ids), family, is_speculators=is_speculators, override=convention)
    assert {listed - id_ for listed, id_ in zip(found.listed, ids, strict=True)} in ({0}, {1})
    assert found.published_ids == tuple(ids)
    assert (found.blocks is None) == (ids == sorted(ids))
    of_fc = found.listed if found.blocks and found.blocks.follows == "list" else found.layer_ids
    assert found.layer_ids == tuple(of_fc[block] for block in found.order)
    assert found.by_block == list(of_fc)
    assert found.is_reordered == (of_fc != found.layer_ids)


@properties
@given(WRITERS, SETS, FAMILIES)
def test_output_i_is_the_input_of_layer_i_plus_1(writer, ids, family):
    inputs = resolve(writer(ids), family, override="input")
    output = resolve(writer(ids), family, override="output")
    assert output.layer_ids == tuple(b + 1 for b in inputs.layer_ids)
    assert output.order == inputs.order


@properties
@given(st.lists(st.integers(-3, N + 3)), JSON)
def test_a_list_of_the_option_is_taken_or_refused_as_it_is(override, ids):
    found = resolve({KEY: ids}, override=override)
    is_valid = (
        bool(override) and len(set(override)) == len(override) and set(override) <= {*range(N + 1)}
    )
    assert isinstance(found, AuxLayers) == is_valid
    if is_valid:
        assert [found.layer_ids[found.order.index(k)] for k in range(len(override))] == override


@settings(max_examples=200, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            KEY: JSON,
            SHORT: JSON,
            OUTPUTS: JSON,
            ANGELSLIM: JSON,
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
