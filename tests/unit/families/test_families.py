"""Every drafter, its config resolved by preflight, against the reference on the published file."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.checkpoints import HIDDEN, VOCAB
from tests.support.drafting import (
    BOUND,
    apart_from_reference,
    bound_of,
    difference,
    load,
    module_logits,
    reference_logits,
)
from tests.support.drafts import LAYER, OURS, VLLMS, as_specforge, valid_draft, write
from tests.support.triton_on_cpu import norm_each_layers_keys
from vllm_eagle_ext.errors import UnsupportedDraftError

pytestmark = pytest.mark.promise(
    "EAGLE-3 with latent attention, P-EAGLE, drafts without aux states: the maths"
)
IDS = "eagle_aux_hidden_state_layer_ids"
# Family -> where its ids are, and from an id to the input that it names. The first is permuted: states
# from Hugging Face follow the list. In the others an engine or hooks have collected them layer by layer.
BY_LIST = {"dflash": ("dflash_config", "target_layer_ids", 1)}
BY_LAYER = {
    "native": ("eagle_config", IDS, 1),
    "post-norm": ("eagle_config", IDS, 1),
    "norm_before_fc": ("eagle_config", IDS, 1),
    "gated": ("eagle_config", IDS, 1),
    "mla": ("eagle_config", IDS, 1),
    "speculators": ("", IDS, 0),
    "p-eagle": ("", IDS, 0),
    "dflash-speculators": ("", "aux_hidden_state_layer_ids", 0),
}


@pytest.mark.parametrize("family", OURS)
def test_logits_equal_the_references(tmp_path, family):
    drafter, layer_ids, path, probe = load(tmp_path, valid_draft(family))
    mine = module_logits(drafter, family, layer_ids, probe)
    assert difference(mine, reference_logits(path, family, layer_ids, probe)) < bound_of(family)
    assert "EagleExt" in type(drafter).__name__


@pytest.mark.parametrize("family", VLLMS)
def test_vllms_own_class_loads_what_the_rules_let_pass(tmp_path, family):
    """Every tensor arrives: each one that is changed changes the draft."""
    draft = valid_draft(family)
    drafter, layer_ids, _, probe = load(tmp_path / "valid", draft)
    assert "EagleExt" not in type(drafter).__name__
    mine = module_logits(drafter, family, layer_ids, probe)
    for index, (name, tensor) in enumerate(draft.tensors.items()):
        if name in ("t2d", "d2t") or "confidence" in name:
            continue
        changed = valid_draft(family)
        changed.tensors[name] = tensor.flip(0) if tensor.ndim > 1 else tensor * 1.5
        other, *_ = load(tmp_path / str(index), changed)
        assert difference(module_logits(other, family, layer_ids, probe), mine) > 1e-6, name


def _listed_out_of_order(draft, place, key, shift):
    """The layer ids as they are listed now: the last one first."""
    block = draft.config[place] if place else draft.config
    block[key] = [block[key][-1], *block[key][:-1]]
    return [id_ + shift for id_ in block[key]]


def _permuted_alike(tmp_path, family, draft, listed, **options):
    """The drafter gets the layer ids in ascending order, with the blocks that were trained on them."""
    drafter, layer_ids, path, probe = load(tmp_path, draft, **options)
    assert layer_ids == sorted(listed) != listed
    mine = module_logits(drafter, family, layer_ids, probe)
    as_listed = reference_logits(path, family, listed, probe)
    assert difference(mine, as_listed) < BOUND
    assert difference(mine, reference_logits(path, family, layer_ids, probe)) > 0.1


@pytest.mark.parametrize("family", BY_LIST)
def test_blocks_of_states_by_the_list_are_permuted(tmp_path, family):
    draft = valid_draft(family)
    _permuted_alike(tmp_path, family, draft, _listed_out_of_order(draft, *BY_LIST[family]))


def test_blocks_of_angelslims_states_are_permuted(tmp_path):
    draft = valid_draft("post-norm")
    ids = draft.config.pop("eagle_config")[IDS]
    draft.config["aux_hidden_states_layer_ids"] = ids[::-1]
    _permuted_alike(tmp_path, "post-norm", draft, [id_ + 1 for id_ in ids[::-1]])


@pytest.mark.parametrize("family", ["native", "mla", "p-eagle", "dflash-speculators"])
def test_the_option_says_that_blocks_follow_a_list(tmp_path, family):
    draft = valid_draft(family)
    listed = _listed_out_of_order(draft, *BY_LAYER[family])
    _permuted_alike(tmp_path, family, draft, listed, aux_layers=listed)


@pytest.mark.parametrize("family", BY_LAYER)
def test_blocks_of_states_by_the_layer_stay_as_they_are(tmp_path, family):
    draft = valid_draft(family)
    listed = _listed_out_of_order(draft, *BY_LAYER[family])
    drafter, layer_ids, path, probe = load(tmp_path, draft)
    assert layer_ids == sorted(listed) != listed
    mine = module_logits(drafter, family, layer_ids, probe)
    assert difference(mine, reference_logits(path, family, layer_ids, probe)) < BOUND
    assert difference(mine, reference_logits(path, family, listed, probe)) > 0.1


@pytest.mark.parametrize("is_specforge", [False, True], ids=["speculators", "specforge"])
@pytest.mark.parametrize("flags", [
    pytest.param((), id="defaults"),
    pytest.param(("fc_norm", "norm_output"), id="fc_norm"),
    pytest.param(("norm_before_fc", "norm_output"), id="norm_before_fc"),
])  # fmt: skip
def test_p_eagle_as_its_trainers_write_it(tmp_path, flags, is_specforge):
    """mask_hidden of three dimensions."""
    draft = valid_draft("p-eagle")
    draft.config |= dict.fromkeys(flags, True)
    if "fc_norm" in flags:
        draft.tensors |= {f"fc_norm.{k}.weight": 1 + 0.3 * torch.randn(HIDDEN) for k in range(3)}
    if "norm_before_fc" in flags:
        draft.tensors["input_norm.weight"] = 1 + 0.3 * torch.randn(3 * HIDDEN)
    if is_specforge:
        as_specforge(draft)
    assert draft.tensors["mask_hidden"].shape == (1, 1, 3 * HIDDEN)
    assert apart_from_reference(tmp_path, "p-eagle", draft) < BOUND


def test_mask_hidden_may_be_flattened_in_any_file(tmp_path):
    draft = valid_draft("p-eagle")
    drafter, layer_ids, _, probe = load(tmp_path / "published", draft, as_bin=True)
    published = module_logits(drafter, "p-eagle", layer_ids, probe)
    draft.tensors["mask_hidden"] = draft.tensors["mask_hidden"][0]
    for as_bin in (False, True):
        drafter, *_ = load(tmp_path / str(as_bin), draft, as_bin=as_bin)
        assert torch.equal(module_logits(drafter, "p-eagle", layer_ids, probe), published)
    draft.tensors["mask_hidden"] = draft.tensors["mask_hidden"][0]
    with pytest.raises(UnsupportedDraftError, match=r"\(192,\).*\(1, 1, 192\) or \(1, 192\)"):
        load(tmp_path / "flat", draft, as_bin=True)


@pytest.mark.parametrize(
    ("family", "d2t", "mark"),
    [
        pytest.param("mla", torch.zeros(VOCAB, dtype=torch.long), False, id="untouched"),
        pytest.param("mla", torch.arange(VOCAB), True, id="target_ids"),
        pytest.param("dflash", torch.zeros(VOCAB, dtype=torch.long), True, id="filled_in"),
    ],
)
def test_d2t_of_a_whole_vocabulary_is_the_identity(tmp_path, family, d2t, mark):
    draft = valid_draft(family)
    draft.tensors |= {"d2t": d2t, "t2d": torch.full((VOCAB,), mark)}
    drafter, layer_ids, path, probe = load(tmp_path, draft)
    mine = module_logits(drafter, family, layer_ids, probe)
    del draft.tensors["d2t"]
    without = write(draft, tmp_path / "without")
    assert difference(mine, reference_logits(without, family, layer_ids, probe)) < BOUND


def test_d2t_of_a_whole_vocabulary_in_another_order_is_refused_while_loading(tmp_path):
    """The map lies in a .bin file, whose values preflight does not read."""
    draft = valid_draft("mla")
    draft.tensors["d2t"] = torch.arange(VOCAB).flip(0)
    with pytest.raises(UnsupportedDraftError, match="another order"):
        load(tmp_path, draft, as_bin=True)


@pytest.mark.parametrize("place", ["dflash_config", ""])
def test_embeddings_of_dflash_are_scaled(tmp_path, place):
    draft = valid_draft("dflash")
    (draft.config[place] if place else draft.config)["input_embedding_scale"] = 8.0
    drafter, layer_ids, path, probe = load(tmp_path, draft)
    mine = module_logits(drafter, "dflash", layer_ids, probe)
    scaled = replace(probe, embed_tokens=8 * probe.embed_tokens)
    assert difference(mine, reference_logits(path, "dflash", layer_ids, scaled)) < BOUND
    assert difference(mine, reference_logits(path, "dflash", layer_ids, probe)) > 0.1


def test_absolute_d2t_is_converted(tmp_path):
    draft = valid_draft("native")
    offsets = draft.tensors["d2t"]
    as_offsets = module_logits(*_three(load(tmp_path / "offsets", draft)))
    draft.tensors["d2t"] = offsets + torch.arange(len(offsets))
    assert torch.equal(module_logits(*_three(load(tmp_path / "absolute", draft))), as_offsets)


def test_t2d_decides_where_both_readings_of_d2t_are_maps(tmp_path):
    """Every third token, as offsets and as target ids: the loader reads what preflight has read."""
    draft, size = valid_draft("native"), 24
    kept = 3 * torch.arange(size)
    draft.config["draft_vocab_size"] = size
    draft.tensors["lm_head.weight"] = draft.tensors["lm_head.weight"][:size].clone()
    draft.tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, kept, value=True)
    draft.tensors["d2t"] = kept - torch.arange(size)
    as_offsets = module_logits(*_three(load(tmp_path / "offsets", draft)))
    assert torch.isfinite(as_offsets[0]).nonzero().flatten().tolist() == kept.tolist()
    draft.tensors["d2t"] = kept
    assert torch.equal(module_logits(*_three(load(tmp_path / "absolute", draft))), as_offsets)


def test_constants_in_the_file_are_no_weights(tmp_path):
    """Exporters write the frequencies of rope; every engine computes them."""
    for family in ("native", "quantised"):
        draft = valid_draft(family)
        draft.tensors["midlayer.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
        load(tmp_path / family, draft)


def _three(loaded):
    drafter, layer_ids, _, probe = loaded
    return drafter, "native", layer_ids, probe


def test_aliases_load_as_the_plain_names(tmp_path):
    draft = valid_draft("native")
    draft.config |= {"use_aux_norm": True}
    for name in ("low", "mid", "high"):
        draft.tensors[f"aux_norm_{name}.weight"] = 1 + 0.3 * torch.randn(64)
    aliased = module_logits(*_three(load(tmp_path / "aliases", draft)))
    for k, name in enumerate(("low", "mid", "high")):
        draft.tensors[f"fc_norm.{k}.weight"] = draft.tensors.pop(f"aux_norm_{name}.weight")
    draft.tensors = {f"model.{name}": tensor for name, tensor in draft.tensors.items()}
    draft.config |= {"fc_norm": draft.config.pop("use_aux_norm")}
    assert torch.equal(module_logits(*_three(load(tmp_path / "plain", draft))), aliased)


def test_strict_off_drops_what_the_drafter_has_no_use_for(tmp_path):
    draft = valid_draft("native")
    plain = module_logits(*_three(load(tmp_path / "plain", draft)))
    draft.tensors["midlayer.self_attn.q_proj.bias"] = torch.ones(64)
    with pytest.raises(UnsupportedDraftError, match=r"(?s)q_proj\.bias.*\"strict\": false"):
        load(tmp_path / "strict", draft)
    relaxed = module_logits(*_three(load(tmp_path / "relaxed", draft, strict=False)))
    assert torch.equal(relaxed, plain)


@pytest.mark.parametrize("family", ["dflash-speculators", "dspark-speculators"])
def test_block_drafts_whose_layers_are_called_llamas(family, tmp_path, monkeypatch):
    """Speculators' config says so; they are Qwen3's all the same."""
    norm_each_layers_keys(monkeypatch.setattr)
    draft, another = valid_draft(family), valid_draft(family, seed=1)
    for each in (draft, another):
        each.config[LAYER]["model_type"] = "llama"
    drafter, layer_ids, path, probe = load(tmp_path / "llama", draft)
    expected = reference_logits(path, family, layer_ids, probe)
    assert difference(module_logits(drafter, family, layer_ids, probe), expected) < BOUND
    drafter, *_ = load(tmp_path / "another", another)  # negative control
    assert difference(module_logits(drafter, family, layer_ids, probe), expected) > 10 * BOUND
