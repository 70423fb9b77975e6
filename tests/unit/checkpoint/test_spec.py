"""What a draft is: every spelling of a config gives the same spec."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.checkpoints import HEAD_DIM, HEADS, HIDDEN, LAYERS, VOCAB
from tests.support.drafts import TARGET, Draft, inspect, valid_draft, write
from vllm_eagle_ext.checkpoint import DraftSpec, TargetFacts
from vllm_eagle_ext.checkpoint.attention import Heads, LayerAttention, read_heads
from vllm_eagle_ext.checkpoint.config import DraftConfig, flatten, parse_config
from vllm_eagle_ext.checkpoint.flags import FLAGS, read_flag
from vllm_eagle_ext.checkpoint.rope import Rope, read_rope, rope_problems
from vllm_eagle_ext.errors import UnsupportedDraftError

LAYER = "transformer_layer_config"


@pytest.fixture
def spec_of(tmp_path) -> Callable[..., DraftSpec]:
    def build(draft: Draft, **options: Any) -> DraftSpec:
        inspection = inspect(draft, tmp_path, **options)
        assert inspection.spec, inspection.findings
        return inspection.spec

    return build


@pytest.mark.parametrize(
    ("family", "expected", "backbone", "drafter"),
    [
        pytest.param("native", "native", "llama", "Eagle3EagleExtLlamaForCausalLM", id="native"),
        pytest.param(
            "post-norm", "post-norm", "llama", "Eagle3EagleExtLlamaForCausalLM", id="post_norm"
        ),
        pytest.param("qwen3", "native", "qwen3", "Eagle3EagleExtQwen3ForCausalLM", id="qwen3"),
        pytest.param("mla", "mla", "deepseek", "Eagle3EagleExtDeepseekV2ForCausalLM", id="mla"),
        pytest.param(
            "speculators", "native", "llama", "Eagle3EagleExtLlamaForCausalLM", id="speculators"
        ),
        pytest.param("p-eagle", "p-eagle", "llama", "Eagle3EagleExtLlamaForCausalLM", id="p_eagle"),
        pytest.param("no_aux", "native", "llama", "Eagle3EagleExtLlamaForCausalLM", id="no_aux"),
        pytest.param("dflash", "dflash", "qwen3", "DFlashEagleExtQwen3ForCausalLM", id="dflash"),
    ],
)
def test_family_backbone_and_drafter(spec_of, family, expected, backbone, drafter):
    draft = valid_draft(family)
    spec = spec_of(draft)
    assert (spec.family, spec.backbone, spec.drafter) == (expected, backbone, drafter)
    assert spec.method == draft.method
    assert spec.architecture == draft.config["architectures"][0]
    assert spec.format == ("speculators" if "speculators_model_type" in draft.config else "published")


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize(
    ("family", "block"),
    [
        pytest.param("native", None, id="top_level"),
        pytest.param("native", "eagle_config", id="eagle_config"),
        pytest.param("speculators", None, id="speculators_root"),
        pytest.param("speculators", LAYER, id="speculators_layer"),
    ],
)
def test_every_place_of_a_flag_counts(spec_of, family, block, name, value):
    draft = valid_draft(family)
    draft.config.pop(name, None)
    (draft.config[block] if block else draft.config)[name] = value
    flag = spec_of(draft).flags[name]
    assert flag.value is value
    assert flag.source == (f"{block}.{name}" if block else name)
    assert not flag.is_contradictory


@pytest.mark.parametrize("name", FLAGS)
def test_flags_default_to_false(name):
    assert read_flag({name: None, "eagle_config": None}, name).source == "default"
    assert not read_flag({}, name)


@pytest.mark.parametrize("block", [None, "eagle_config"])
def test_use_aux_norm_is_fc_norm(spec_of, block):
    draft = valid_draft("post-norm")
    del draft.config["fc_norm"]
    (draft.config[block] if block else draft.config)["use_aux_norm"] = True
    spec = spec_of(draft)
    assert spec.fc_norm.value
    assert spec.fc_norm.source.endswith("use_aux_norm")


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"norm_output": True, "eagle_config": {"norm_output": False}}, id="eagle_config"),
        pytest.param({"norm_output": True, LAYER: {"norm_output": False}}, id="speculators"),
    ],
)
def test_the_first_place_of_a_flag_wins(config):
    flag = read_flag(config, "norm_output")
    assert flag.is_contradictory
    assert (flag.value, flag.source) == (True, "norm_output")
    assert [value for _, value in flag.stated] == [True, False]


def test_an_alias_can_contradict_its_flag():
    assert read_flag({"fc_norm": False, "use_aux_norm": True}, "fc_norm").is_contradictory


def test_the_same_value_twice_is_no_contradiction():
    config = {"fc_norm": True, "eagle_config": {"fc_norm": True}}
    assert not read_flag(config, "fc_norm").is_contradictory


@pytest.mark.parametrize("option", [True, False])
@pytest.mark.parametrize("family", ["native", "post-norm"])
def test_option_norm_output(spec_of, family, option):
    spec = spec_of(valid_draft(family), norm_output=option)
    assert (spec.norm_output.value, spec.norm_output.source) == (option, "option norm_output")
    assert spec.family == ("post-norm" if option else "native")


def test_option_leaves_a_contradiction_to_be_seen(tmp_path):
    draft = valid_draft("post-norm")
    draft.config["eagle_config"]["norm_output"] = False
    found = inspect(draft, tmp_path, norm_output=True).findings
    assert [finding.rule for finding in found] == ["flags_agree"]


@pytest.mark.parametrize("block", [None, "eagle_config"])
def test_use_aux_hidden_state(spec_of, block):
    draft = valid_draft("no_aux")
    draft.config["eagle_config"] = {}
    (draft.config[block] if block else draft.config)["use_aux_hidden_state"] = False
    spec = spec_of(draft)
    assert not spec.fuses_aux_states
    assert spec.aux_layers.boundaries == ()


def yarn(key: str) -> dict[str, Any]:
    return {key: "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("config", "rope"),
    [
        pytest.param({"rope_theta": 5e4}, Rope(5e4), id="theta"),
        pytest.param({"rope_theta": 5e4, "rope_scaling": None}, Rope(5e4), id="no_scaling"),
        pytest.param({"rope_parameters": {"rope_theta": 5e4}}, Rope(5e4), id="parameters"),
        pytest.param(
            {"rope_parameters": {"rope_theta": 50000, "rope_type": "default"}},
            Rope(5e4),
            id="parameters_with_type",
        ),
        pytest.param(
            {"rope_theta": 5e4, "rope_parameters": {"rope_theta": 5e4}}, Rope(5e4), id="in_both"
        ),
        pytest.param(
            {"rope_theta": None, "rope_parameters": {"rope_theta": 5e4}}, Rope(5e4), id="null_theta"
        ),
        pytest.param(
            {"rope_theta": 5e4, "rope_scaling": yarn("type")},
            Rope(5e4, "yarn", 4.0, 8192),
            id="yarn_type",
        ),
        pytest.param(
            {"rope_theta": 5e4, "rope_scaling": yarn("rope_type")},
            Rope(5e4, "yarn", 4.0, 8192),
            id="yarn_rope_type",
        ),
        pytest.param(
            {"rope_parameters": {"rope_theta": 5e4, **yarn("rope_type")}},
            Rope(5e4, "yarn", 4.0, 8192),
            id="yarn_parameters",
        ),
        pytest.param(
            {"rope_theta": 5e4, "partial_rotary_factor": 0.5}, Rope(5e4, partial=0.5), id="partial"
        ),
        pytest.param(
            {"rope_parameters": {"rope_theta": 5e4, "partial_rotary_factor": 0.5}},
            Rope(5e4, partial=0.5),
            id="partial_parameters",
        ),
        pytest.param(
            {
                "partial_rotary_factor": None,
                "rope_parameters": {"rope_theta": 5e4, "partial_rotary_factor": 0.5},
            },
            Rope(5e4, partial=0.5),
            id="null_partial",
        ),
        pytest.param({"rope_scaling": None}, Rope(None), id="nothing"),
        pytest.param(
            {"rope_parameters": {"full_attention": {"rope_theta": 5e4}}},
            Rope(None),
            id="per_layer_type",
        ),
    ],
)
def test_rope_spellings(config, rope):
    assert rope_problems(config) == []
    assert read_rope(config) == rope


@pytest.mark.parametrize(
    ("config", "words"),
    [
        pytest.param({"rope_theta": "1e6"}, "rope_theta", id="text"),
        pytest.param({"rope_theta": True}, "rope_theta", id="truth"),
        pytest.param({"rope_theta": float("inf")}, "rope_theta", id="infinite"),
        pytest.param({"rope_parameters": [1]}, "rope_parameters", id="no_object"),
        pytest.param({"rope_scaling": {"factor": -1}}, "rope_scaling.factor", id="factor"),
        pytest.param({"partial_rotary_factor": 0}, "partial_rotary_factor", id="partial"),
    ],
)
def test_rope_problems(config, words):
    (problem,) = rope_problems(config)
    assert words in problem.field


def test_rope_in_words():
    assert str(Rope(None)) == "theta not stated"
    assert str(Rope(1e6, "yarn", 4.0, 8192, 0.5)) == (
        "theta 1e+06, yarn x4, from 8192 positions, 0.5 of each head"
    )


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        pytest.param(None, 512, id="max_position_embeddings"),
        pytest.param({"type": "yarn", "original_max_position_embeddings": 64}, 64, id="stretched"),
    ],
)
def test_trained_length(spec_of, scaling, length):
    draft = valid_draft("native")
    draft.config["rope_scaling"] = scaling
    assert spec_of(draft).trained_length == length


def layers_of(spec_of, **changes: Any) -> tuple[LayerAttention, ...]:
    """Of a DFlash draft whose first layer is full and whose second one slides."""
    draft = valid_draft("dflash")
    nested = changes.pop("dflash_config", {})
    draft.config |= {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 32}
    draft.config |= changes
    draft.config["dflash_config"] |= nested
    return spec_of(draft).layers


@pytest.mark.parametrize("is_causal", [None, True, False])
@pytest.mark.parametrize("causal", [None, True, False])
def test_causality_of_dflash(spec_of, is_causal, causal):
    layers = layers_of(spec_of, is_causal=is_causal, dflash_config={"causal": causal})
    stated = [flag for flag in (is_causal, causal) if flag is not None]
    expected = (stated[0], stated[0]) if stated else (False, True)
    assert tuple(layer.causal for layer in layers) == expected


@pytest.mark.parametrize(
    ("kinds", "flags", "expected"),
    [
        pytest.param(("full", "sliding"), [], (False, True), id="mixed_missing"),
        pytest.param(("full", "sliding"), [False], (False, True), id="mixed_false"),
        pytest.param(("full", "sliding"), [True], (False, False), id="mixed_true"),
        pytest.param(("full", "full"), [], (False, False), id="full_missing"),
        pytest.param(("full", "full"), [False], (False, False), id="full_false"),
        pytest.param(("full", "full"), [True], (False, False), id="full_true"),
        pytest.param(("sliding", "sliding"), [], (True, True), id="sliding_missing"),
        pytest.param(("sliding", "sliding"), [False], (True, True), id="sliding_false"),
        pytest.param(("sliding", "sliding"), [True], (False, False), id="sliding_true"),
    ],
)
def test_causality_of_speculators_dflash(spec_of, kinds, flags, expected):
    draft = valid_draft("dflash")
    layer = draft.config | {"layer_types": [f"{kind}_attention" for kind in kinds], "sliding_window": 32}
    dflash = layer.pop("dflash_config")
    draft.config = {
        "speculators_model_type": "dflash",
        "aux_hidden_state_layer_ids": [i + 1 for i in dflash["target_layer_ids"]],
        "mask_token_id": dflash["mask_token_id"],
        "block_size": layer.pop("block_size"),
        LAYER: layer,
    } | dict.fromkeys(["sliding_window_non_causal"][: len(flags)], *flags)
    spec = spec_of(draft)
    assert tuple(layer.causal for layer in spec.layers) == expected
    assert spec.aux_layers.boundaries == (2, 4, 6)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        pytest.param({}, (None, 32), id="where_a_layer_slides"),
        pytest.param({"dflash_config": {"swa_window_size": 16}}, (None, 16), id="own_window"),
        pytest.param({"dflash_config": {"use_swa": True}}, (None, 32), id="forced_is_moot"),
        pytest.param({"layer_types": None}, (None, None), id="full"),
        pytest.param(
            {"layer_types": None, "dflash_config": {"use_swa": True}}, (32, 32), id="forced_on_all"
        ),
        pytest.param({"layer_types": ["sliding_attention"] * 2}, (32, 32), id="all_slide"),
        pytest.param(
            {"layer_types": None, "use_sliding_window": True, "max_window_layers": 1},
            (None, 32),
            id="derived",
        ),
        pytest.param(
            {"layer_types": None, "use_sliding_window": True}, (None, None), id="beyond_the_last_layer"
        ),
        pytest.param(
            {"layer_types": None, "use_sliding_window": False, "max_window_layers": 0},
            (None, None),
            id="switched_off",
        ),
    ],
)
def test_windows_of_dflash(spec_of, changes, windows):
    assert tuple(layer.window for layer in layers_of(spec_of, **changes)) == windows


def test_forced_windows_are_not_causal(spec_of):
    layers = layers_of(spec_of, layer_types=None, dflash_config={"use_swa": True})
    assert layers == (LayerAttention(32, False),) * 2


def test_eagle3_layers_are_causal_and_may_slide(spec_of):
    draft = valid_draft("native")
    assert spec_of(draft).layers == (LayerAttention(None, True),)
    draft.config |= {"layer_types": ["sliding_attention"], "sliding_window": 32}
    assert spec_of(draft).layers == (LayerAttention(32, True),)


@pytest.mark.parametrize(("family", "window"), [("qwen3", 32), ("native", None)])
def test_only_qwen3_configs_derive_windows(spec_of, family, window):
    draft = valid_draft(family)
    draft.config |= {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 32}
    assert spec_of(draft).layers == (LayerAttention(window, True),)


@pytest.mark.parametrize(
    ("backbone", "stated", "heads"),
    [
        pytest.param("llama", {}, Heads(2, 2, 32), id="llama"),
        pytest.param("deepseek", {}, Heads(2, 2, 32), id="deepseek"),
        pytest.param("qwen3", {}, Heads(2, 32, 128), id="qwen3"),
        pytest.param("qwen3", {"num_key_value_heads": 1, "head_dim": 16}, Heads(2, 1, 16), id="stated"),
        pytest.param("llama", {"num_key_value_heads": 1}, Heads(2, 1, 32), id="llama_kv_stated"),
    ],
)
def test_heads(backbone, stated, heads):
    base = valid_draft("native").config
    del base["num_key_value_heads"], base["head_dim"]
    config = parse_config(base | stated)
    assert isinstance(config, DraftConfig)
    assert read_heads(config, backbone) == heads


@pytest.mark.parametrize(
    ("block", "k"),
    [
        pytest.param(
            {"proposal_methods": [{"speculative_tokens": 5}, {"speculative_tokens": 7}]}, 5, id="k"
        ),
        pytest.param({"proposal_methods": [{"proposal_type": "greedy"}]}, None, id="method_without"),
        pytest.param({"proposal_methods": []}, None, id="no_method"),
        pytest.param({}, None, id="empty"),
        pytest.param(None, None, id="null"),
    ],
)
def test_k_of_training(spec_of, block, k):
    draft = valid_draft("speculators")
    draft.config["speculators_config"] = block
    assert spec_of(draft).trained_k == k
    assert spec_of(valid_draft("native")).trained_k is None


def test_root_keys_of_speculators_win_unless_null():
    layer = {"model_type": "llama", "vocab_size": 8, "hidden_size": 4}
    config = {
        "speculators_model_type": "eagle3",
        "model_type": "speculators",
        "vocab_size": 16,
        "hidden_size": None,
        LAYER: layer,
    }
    flat = flatten(config)
    assert (flat["vocab_size"], flat["hidden_size"], flat["model_type"]) == (16, 4, "llama")
    published = {"vocab_size": 16, LAYER: layer}
    assert flatten(published) is published


@pytest.mark.parametrize("block", [None, "text_config", "language_config", "llm_config"])
def test_target_facts(tmp_path, block):
    config = {"vocab_size": 5, "model_type": "composite", block: TARGET} if block else TARGET
    facts = TargetFacts.from_config(config, tmp_path)
    assert (facts.num_layers, facts.hidden_size, facts.vocab_size) == (LAYERS, HIDDEN, VOCAB)
    assert (facts.rope, facts.max_position_embeddings) == (Rope(10000.0), 512)
    assert facts.folder == tmp_path


def test_target_vocabulary_of_the_root():
    text = {key: value for key, value in TARGET.items() if key != "vocab_size"}
    assert TargetFacts.from_config({"vocab_size": 77, "text_config": text}).vocab_size == 77


@pytest.mark.parametrize("value", [None, 0, -1, "8", True, 8.0])
@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size"])
def test_target_sizes_are_needed(key, value):
    with pytest.raises(UnsupportedDraftError, match=f"{key} of the target"):
        TargetFacts.from_config(TARGET | {key: value})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"rope_theta": "x"}, id="theta"),
        pytest.param({"rope_theta": [1]}, id="theta_list"),
        pytest.param({"partial_rotary_factor": "x"}, id="partial"),
        pytest.param({"rope_scaling": {"type": "yarn", "factor": "x"}}, id="factor"),
        pytest.param({"max_position_embeddings": "x"}, id="length"),
    ],
)
def test_a_malformed_target_raises_nothing_else(change):
    with contextlib.suppress(UnsupportedDraftError):
        assert str(TargetFacts.from_config(TARGET | change).rope)


@pytest.mark.parametrize(
    ("rows", "gate"),
    [
        pytest.param(HEADS * HEAD_DIM, None, id="none"),
        pytest.param(2 * HEADS * HEAD_DIM, "elementwise", id="elementwise"),
        pytest.param(HEADS * HEAD_DIM + HEADS, "headwise", id="headwise"),
        pytest.param(HEADS * HEAD_DIM + 1, None, id="neither"),
    ],
)
def test_gate(spec_of, rows, gate):
    draft = valid_draft("native")
    draft.tensors["midlayer.self_attn.q_proj.weight"] = torch.ones(rows, 2 * HIDDEN)
    spec = spec_of(draft)
    assert (spec.gate and spec.gate.kind, spec.family) == (gate, "gated" if gate else "native")


@pytest.mark.parametrize("module", ["gate", "g_proj", "gate_proj"])
@pytest.mark.parametrize(("rows", "kind"), [(HEADS * HEAD_DIM, "elementwise"), (HEADS, "headwise")])
def test_gate_in_a_tensor_of_its_own(spec_of, module, rows, kind):
    draft = valid_draft("native")
    draft.tensors[f"midlayer.self_attn.{module}.weight"] = torch.ones(rows, 2 * HIDDEN)
    gate = spec_of(draft).gate
    assert (gate.kind, gate.module) == (kind, module)


@pytest.mark.parametrize(
    ("change", "options", "layout", "source"),
    [
        ({}, {}, "interleaved", "gate_layout"),
        ({"gate_layout": None}, {}, "interleaved", "assumed"),
        ({"gate_layout": "concat"}, {}, "concat", "gate_layout"),
        ({"gate_layout": None, "eagle_config.": "concat"}, {}, "concat", "eagle_config.gate_layout"),
        ({"gate_layout": "concat"}, {"gate_layout": "interleaved"}, "interleaved", "option gate_layout"),
    ],
)
def test_gate_layout(spec_of, change, options, layout, source):
    draft = valid_draft("gated")
    if (nested := change.pop("eagle_config.", None)) is not None:
        draft.config["eagle_config"]["gate_layout"] = nested
    draft.config |= change
    gate = spec_of(draft, **options).gate
    assert (gate.layout, gate.layout_source) == (layout, source)


def test_mla_without_a_query_latent_has_no_gate(tmp_path):
    """Its q_proj has rows for nope and rotary parts, here as many as a gated one would."""
    draft = valid_draft("mla")
    nope = rotary = 32
    draft.config |= {"q_lora_rank": None, "qk_nope_head_dim": nope, "qk_rope_head_dim": rotary}
    latent, value = draft.config["kv_lora_rank"], draft.config["v_head_dim"]
    for name in ("q_a_proj", "q_a_layernorm", "q_b_proj"):
        del draft.tensors[f"midlayer.self_attn.{name}.weight"]
    shapes = {
        "q_proj": (HEADS * (nope + rotary), 2 * HIDDEN),
        "kv_a_proj_with_mqa": (latent + rotary, 2 * HIDDEN),
        "kv_b_proj": (HEADS * (nope + value), latent),
    }
    for name, shape in shapes.items():
        draft.tensors[f"midlayer.self_attn.{name}.weight"] = torch.ones(shape)
    inspection = inspect(draft, tmp_path)
    assert inspection.findings == ()
    assert inspection.spec.gate is None


def test_presence_of_embeddings_and_head(spec_of):
    found = {family: spec_of(valid_draft(family)) for family in ("speculators", "native", "dflash")}
    assert {family: (spec.embeddings, spec.head) for family, spec in found.items()} == {
        "speculators": ("own", "own"),
        "native": ("shared", "own"),
        "dflash": ("shared", "shared"),
    }


def test_presence_in_bin_files_is_unknown(spec_of):
    draft = valid_draft("native")
    draft.tensors.clear()
    spec = spec_of(draft)
    assert (spec.weights, spec.embeddings, spec.head) == ("bin", "unknown", "unknown")


def test_mask_token_in_the_order_of_vllm(spec_of):
    draft = valid_draft("dflash")
    keys = ["mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id"]
    draft.config |= {key: index + 1 for index, key in enumerate(keys)}
    found = [spec_of(draft).mask_token_id]
    del draft.config["dflash_config"]["mask_token_id"]
    for key in keys:
        found.append(spec_of(draft).mask_token_id)
        del draft.config[key]
    assert found == [VOCAB - 1, 1, 2, 3, 4]
    assert spec_of(draft).mask_token_id is None


def test_mask_token_zero_is_one(spec_of):
    draft = valid_draft("dflash")
    draft.config["dflash_config"]["mask_token_id"] = 0
    draft.config["pard_token"] = 5
    assert spec_of(draft).mask_token_id == 0


@pytest.mark.parametrize("place", ["top_level", "dflash_config"])
def test_block_size(spec_of, place):
    draft = valid_draft("dflash")
    if place == "dflash_config":
        draft.config["dflash_config"]["block_size"] = draft.config.pop("block_size")
    assert spec_of(draft).block_size == 8


def test_vocabulary(spec_of):
    assert str(spec_of(valid_draft("native")).vocabulary) == "96, d2t as offsets"
    whole = valid_draft("mla")
    del whole.config["draft_vocab_size"]
    assert str(spec_of(whole).vocabulary) == "128"


def test_target_width_is_the_targets(spec_of):
    spec = spec_of(valid_draft("native"), target={"hidden_size": 2 * HIDDEN})
    assert (spec.hidden_size, spec.target_hidden_size) == (HIDDEN, 2 * HIDDEN)


@pytest.mark.parametrize(
    ("block", "name"),
    [
        pytest.param(None, None, id="none"),
        pytest.param({"quant_method": "fp8"}, "fp8", id="named"),
        pytest.param({}, "quantised", id="unnamed"),
    ],
)
def test_quantisation(spec_of, block, name):
    draft = valid_draft("native")
    draft.config["quantization_config"] = block
    assert spec_of(draft).quantisation == name


def test_reads_without_vllm_or_torch(tmp_path):
    folder = write(valid_draft("post-norm"), tmp_path)
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['vllm'] = None\n"
        "from vllm_eagle_ext.checkpoint import *\n"
        f"target = TargetFacts(num_layers={LAYERS}, hidden_size={HIDDEN}, vocab_size={VOCAB})\n"
        f"print(inspect_draft(read_draft_files({str(folder)!r}), target, Setting()).spec.title)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "post-norm EAGLE-3", result.stderr
