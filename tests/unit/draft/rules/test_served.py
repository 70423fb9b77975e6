"""Settings, types and names with which a draft is served, or passed through to vLLM."""

from __future__ import annotations

import pytest

from tests.support.checkpoints import HIDDEN, LAYERS, VOCAB
from tests.support.drafts import inspect, valid_draft
from tests.unit.draft.rules.broken import names, write_tokenizers
from tests.unit.draft.rules.changes import key, more


@pytest.mark.parametrize("draft", [{"a": 0}, {"a": 0, "b": 1, "mask": 2}])
def test_tokenizers_that_agree(tmp_path, draft):
    target = write_tokenizers(tmp_path, draft, {"a": 0, "b": 1})
    assert inspect(valid_draft("native"), tmp_path, target_folder=target).findings == ()


@pytest.mark.parametrize(
    ("ids", "rules"),
    [
        (range(VOCAB), set()),
        (range(VOCAB + 1), {"narrow_vocabulary_is_padded"}),
        ((), {"narrow_vocabulary_is_padded"}),  # a tokenizer without tokens tells nothing
    ],
)
def test_the_targets_tokenizer_tells_what_is_padding(tmp_path, ids, rules):
    target = write_tokenizers(tmp_path, {}, {f"t{i}": i for i in ids})
    rows = {"vocab_size": VOCAB + 2000}
    inspection = inspect(valid_draft("dflash"), tmp_path, target=rows, target_folder=target)
    assert names(inspection.findings) == rules
    seen = inspection.case.target
    assert (seen.vocab_size, seen.rows) == (VOCAB, VOCAB + 2000)


@pytest.mark.promise("both are taken on V1, and on V2 as soon as vLLM serves them")
@pytest.mark.parametrize(
    ("family", "engine"),
    [
        pytest.param("no_aux", {"runner": "v1"}, id="no_aux_on_v1"),
        pytest.param("no_aux", {"runner": "v2", "before_033": False}, id="no_aux_on_v2"),
        pytest.param("p-eagle", {"runner": "v2"}, id="p_eagle_in_series_on_v2"),
        pytest.param("p-eagle", {"runner": "v1", "parallel_drafting": True}, id="p_eagle_on_v1"),
        pytest.param("dflash", {"runner": "v1"}, id="one_window_on_v1"),
        pytest.param("dflash", {"runner": "v2"}, id="one_window_on_v2"),
        pytest.param("native", {"k": 10, "method": None, "max_model_len": None}, id="nothing_known"),
    ],
)
def test_settings_that_serve(tmp_path, family, engine):
    assert inspect(valid_draft(family), tmp_path, engine=engine).findings == ()


# The tensors tell where a draft of these trainers is of another kind.
OF_TRAINERS = (
    "qkv_bias", "fc_bias", "eagle_config.use_last_layernorm", "routed_scaling_factor", "temperature",
)  # fmt: skip
KEYS_WITHOUT_EFFECT = [
    *(("no_rope_layers", layers) for layers in (None, [], [1], [1, True, 1])),  # 1: with rope
    ("eagle_config.input_embedding_scale", 1.0), ("eagle_config.attention_value_scale", 1.0),
    ("eagle_config.use_swa", False), ("eagle_config.is_neox_style", True), ("residual_multiplier", 1.0),
    ("query_pre_attn_scalar", 32), ("attn_logit_softcapping", None), ("some_scale", 1),
    ("pretraining_tp", 2), ("model_type", "olmo2"), *((name, 2) for name in OF_TRAINERS),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), KEYS_WITHOUT_EFFECT, ids=str)
def test_keys_that_change_nothing(tmp_path, name, value):
    draft = valid_draft("native")
    key(name, value)(draft)
    rules = names(inspect(draft, tmp_path).findings)
    assert not rules & {"keys_are_computed", "mathematical_keys_are_known"}
    assert name in OF_TRAINERS or not rules


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "xdrope", "alpha": 1000.0, "xdrope_section": [4, 4, 4, 4]},
        {
            "rope_type": "dynamic",
            "alpha": 1000.0,
            "factor": 1.0,
            "mrope_section": [4, 4, 4, 4],
        },  # as transformers has it
    ],
)
def test_a_plain_rope_on_a_target_with_xdrope(tmp_path, scaling):
    target = {"rope_scaling": scaling}
    assert inspect(valid_draft("native"), tmp_path, target=target).findings == ()
    other = target | {"rope_theta": 500000.0}
    assert names(inspect(valid_draft("native"), tmp_path, target=other).findings) == {
        "rope_matches_the_target"
    }


GEMMA = {"model_type": "gemma4_text"}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        pytest.param("dflash", [key("dflash_config.input_embedding_scale", 8.0)], id="stated"),
        pytest.param("dflash", [key("input_embedding_scale", 1.0)], id="stated_as_1"),
        pytest.param("dspark", [more("embed_tokens.weight", VOCAB, HIDDEN)], id="own_embeddings"),
        pytest.param("dflash-speculators", [], id="trained_on_the_table"),
        pytest.param("native", [], id="eagle3"),
    ],
)
def test_embeddings_of_a_target_that_scales_them(tmp_path, family, changes):
    draft = valid_draft(family)
    for change in changes:
        change(draft)
    assert "embedding_scale_is_stated" not in names(inspect(draft, tmp_path, target=GEMMA).findings)


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        ("Eagle3MiniMaxM2ForCausalLM", "native"),  # vLLM's class under other names
        ("Eagle3Qwen2_5vlForCausalLM", "native"),
        ("Eagle3Qwen3vlForCausalLM", "native"),
        ("LlamaEagle3DraftModel", "post-norm"),
        ("LlamaEagle3DraftModel", "p-eagle"),
        ("LlamaEagle3DraftModel", "mla"),
        ("Qwen3DFlash2DraftModel", "dflash2"),
        ("CosyVoice3Eagle3LlamaForCausalLM", "native"),  # AngelSlim
        ("PeagleLlamaForCausalLM", "p-eagle"),  # vLLM's readers of speculators
    ],
)
def test_names_of_trainers(tmp_path, architecture, family):
    """Others are loaded in families/test_other_trainers.py."""
    plain = inspect(valid_draft(family), tmp_path / "plain", engine={"runner": "v2"})
    draft = valid_draft(family)
    draft.config["architectures"] = [architecture]
    named = inspect(draft, tmp_path / "named", engine={"runner": "v2"})
    assert named.errors == plain.errors
    assert (named.spec.family, named.spec.drafter) == (plain.spec.family, plain.spec.drafter)


def test_the_targets_depth_is_no_depth_of_a_draft(tmp_path):
    """NeMo AutoModel writes the target's config, also of more layers than any draft has."""
    draft = valid_draft("native")
    draft.config |= {
        "num_hidden_layers": 80, "layer_types": ["sliding_attention"] * 80, "sliding_window": 8,
    }  # fmt: skip
    inspection = inspect(draft, tmp_path, target={"num_hidden_layers": 80})
    assert names(inspection.findings) == {"depth_is_the_drafts_own"}
    assert inspection.spec.num_layers == 1
    assert [layer.window for layer in inspection.spec.layers] == [None]


def test_the_targets_depth_is_read_as_a_whole_number_only(tmp_path):
    draft = valid_draft("native")
    draft.config["num_hidden_layers"] = float(LAYERS)
    (error,) = inspect(draft, tmp_path).errors
    assert f'write "num_hidden_layers": {LAYERS}' in error.problem.remedy


def test_a_parallel_draft_of_the_targets_depth_lacks_layers(tmp_path):
    draft = valid_draft("p-eagle")
    draft.config["num_hidden_layers"] = LAYERS
    assert "tensors_are_complete" in names(inspect(draft, tmp_path).errors)


_NEW = "Eagle3NewForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "engine"),
    [
        pytest.param("K3DSparkModel", {}, id="known_to_us"),
        pytest.param(_NEW, {"registered": frozenset({_NEW})}, id="known_to_this_vllm"),
        pytest.param("NewForCausalLM", {"registered": frozenset({_NEW})}, id="renamed_by_vllm"),
    ],
)
def test_passed_through(tmp_path, architecture, engine):
    draft = valid_draft("native")
    draft.config["architectures"] = [architecture]
    assert inspect(draft, tmp_path, engine=engine).is_passed_through


def test_another_method_leaves_it_to_vllm(tmp_path):
    """A plain model as a draft model."""
    draft = valid_draft("native")
    draft.config["architectures"] = ["LlamaForCausalLM"]
    inspection = inspect(draft, tmp_path, engine={"method": "draft_model"})
    assert inspection.is_passed_through
    assert not inspection.findings


def test_a_refused_draft_is_not_passed_through_to_vllm(tmp_path):
    inspection = inspect(valid_draft("native"), tmp_path, engine={"method": "eagle"})
    assert inspection.errors
    assert not inspection.is_passed_through


def test_a_pard_draft_is_told_how_vllm_serves_it(tmp_path):
    """It is a plain model, which drafts in parallel by masks."""
    draft = valid_draft("p-eagle")
    draft.config |= {"architectures": ["LlamaForCausalLM"], "pard_token": 7}
    gone = ("mask_hidden", "fc.weight", "hidden_norm.weight")
    draft.tensors = {name: t for name, t in draft.tensors.items() if not name.endswith(gone)}
    inspection = inspect(draft, tmp_path)
    (cause,) = [f for f in inspection.causes if f.rule == "draft_is_no_plain_model"]
    assert '"method": "draft_model"' in cause.problem.remedy
