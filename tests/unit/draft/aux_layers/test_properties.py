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
    aux = resolve_aux_layers(
        writer(ids),
        num_target_layers=layers,
        convention=registry.families()[family].id_convention,
        is_speculators=is_speculators,
        override=convention,
    )
    if isinstance(aux, list):
        assert aux
        return
    assert list(aux.layer_ids) == sorted(set(aux.layer_ids))
    assert 0 <= aux.layer_ids[0] <= aux.layer_ids[-1] <= layers
    assert sorted(aux.order) == list(range(len(aux.layer_ids)))


@properties
@given(WRITERS, SETS, FAMILIES, st.booleans(), CONVENTIONS)
def test_order_leads_back_to_the_given_ids(writer, ids, family, is_speculators, convention):
    aux = resolve(writer(ids), family, is_speculators=is_speculators, override=convention)
    assert {listed - id_ for listed, id_ in zip(aux.listed, ids, strict=True)} in ({0}, {1})
    assert aux.published_ids == tuple(ids)
    assert (aux.blocks is None) == (ids == sorted(ids))
    of_fc = aux.listed if aux.blocks and aux.blocks.follows == "list" else aux.layer_ids
    assert aux.layer_ids == tuple(of_fc[block] for block in aux.order)
    assert aux.by_block == list(of_fc)
    assert aux.is_reordered == (of_fc != aux.layer_ids)


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
    aux = resolve({KEY: ids}, override=override)
    is_valid = (
        bool(override) and len(set(override)) == len(override) and set(override) <= {*range(N + 1)}
    )
    assert isinstance(aux, AuxLayers) == is_valid
    if is_valid:
        assert [aux.layer_ids[aux.order.index(k)] for k in range(len(override))] == override


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
    aux = resolve(config, family, is_speculators=is_speculators, override=override)
    assert isinstance(aux, AuxLayers) or [str(problem) for problem in aux]
