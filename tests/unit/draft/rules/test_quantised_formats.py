"""Formats of quantised weights: blocks by their headers, and what vLLM is told that is left plain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.checkpoints import LAYERS, VOCAB
from tests.support.drafts import TARGET, inspect, valid_draft
from tests.support.quantised_drafts import quantised_draft
from vllm_eagle_ext.draft import Inspection, TargetFacts, inspect_draft
from vllm_eagle_ext.draft.draft_files import DraftFiles
from vllm_eagle_ext.draft.headers import TensorHeader
from vllm_eagle_ext.draft.quantisation import named_for_vllm
from vllm_eagle_ext.draft.spec import DraftRequest

Headers = dict[str, tuple[str, tuple[int, ...]]]  # of what stands for one weight -> dtype and shape
WIDTH, INNER, KV = 320, 1040, 160  # rows that are no multiple of 128, columns that 16 divides
LINEAR = {
    "self_attn.q_proj": (WIDTH, 2 * WIDTH),
    "self_attn.k_proj": (KV, 2 * WIDTH),
    "self_attn.v_proj": (KV, 2 * WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}


def groups(size: int) -> int:
    return -(-size // 128)


def fp8(rows: int, columns: int) -> Headers:
    return {"weight": ("F8_E4M3", (rows, columns)), "weight_scale": ("F32", ())}


def fp8_blocks(rows: int, columns: int) -> Headers:
    scale = ("F32", (groups(rows), groups(columns)))
    return {"weight": ("F8_E4M3", (rows, columns)), "weight_scale_inv": scale}


def fp8_blocks_of_compressed_tensors(rows: int, columns: int) -> Headers:
    scale = ("BF16", (groups(rows), groups(columns)))
    return {"weight": ("F8_E4M3", (rows, columns)), "weight_scale": scale}


def inspect_headers(scheme: Callable[[int, int], Headers], quantisation: dict[str, Any]) -> Inspection:
    """A draft of which only the headers are there, quantised but for fc and head."""
    config = valid_draft("native").config | {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": WIDTH // 32,
        "num_key_value_heads": KV // 32,
        "draft_vocab_size": VOCAB,
        "quantization_config": quantisation,
    }
    layer_norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    shapes = {
        "fc.weight": (WIDTH, 3 * WIDTH),
        "lm_head.weight": (VOCAB, WIDTH),
        "norm.weight": (WIDTH,),
        **{f"layers.0.{norm}.weight": (WIDTH,) for norm in layer_norms},
    }
    tensors = {name: TensorHeader(shape, "BF16", name) for name, shape in shapes.items()}
    for module, (rows, columns) in LINEAR.items():
        for suffix, (dtype, shape) in scheme(rows, columns).items():
            name = f"layers.0.{module}.{suffix}"
            tensors[name] = TensorHeader(shape, dtype, name)
    files = DraftFiles("draft", config, "safetensors", tensors)
    target = TargetFacts.from_config({**TARGET, "hidden_size": WIDTH})
    return inspect_draft(files, target, DraftRequest(method="eagle3", k=3, max_model_len=512))


LEFT_OUT = ["lm_head", "model.fc"]  # by run-time names
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "of the scheme",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}}},
}


@pytest.mark.parametrize(
    ("scheme", "quantisation"),
    [
        pytest.param(scheme, quantisation, id=f"{scheme.__name__}-{quantisation['quant_method']}")
        for scheme, quantisation in [
            (fp8, {"quant_method": "fp8", "ignored_layers": LEFT_OUT}),
            (fp8, {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": LEFT_OUT}),
            (fp8_blocks, {"quant_method": "fp8", "modules_to_not_convert": LEFT_OUT}),
            (fp8_blocks_of_compressed_tensors, {**COMPRESSED, "ignore": LEFT_OUT}),
        ]
    ],
)
def test_quantised_as_vllm_serves_it(scheme, quantisation):
    inspection = inspect_headers(scheme, quantisation)
    assert inspection.findings == ()
    assert inspection.case


FC = "model.fc"


@pytest.fixture
def written(tmp_path):
    """What vLLM gets of a draft in this format with other keys of its quantisation; None: without."""

    def write(format_, **changes):
        draft = quantised_draft("native", format_).draft
        config = draft.config["quantization_config"] | changes
        draft.config["quantization_config"] = {k: v for k, v in config.items() if v is not None}
        inspection = inspect(draft, tmp_path)
        assert inspection.findings == ()
        return named_for_vllm(inspection.case)

    return write


@pytest.mark.parametrize(
    ("format_", "key", "listed"),
    [
        ("fp8", "ignored_layers", None),
        ("fp8", "ignored_layers", ["fc"]),  # a part of a name
        ("AWQ", "modules_to_not_convert", ["lm_head"]),
        ("AWQ", "modules_to_not_convert", ["*fc"]),  # it knows no patterns
        ("compressed-tensors NVFP4", "ignore", ["re:.*head"]),
        ("modelopt NVFP4", "exclude_modules", ["fc?"]),
    ],
)
def test_a_plain_fc_is_left_out_whatever_the_list_says(written, format_, key, listed):
    found = written(format_, **{key: listed})["ignore" if key == "exclude_modules" else key]
    assert {FC, *(name for name in listed or () if not name.startswith("re:"))} <= set(found)
    # Of patterns vLLM gets the names of the modules that they fit.
    assert not [name for name in found if name.startswith("re:")]
    assert listed != ["re:.*head"] or "lm_head" in found


@pytest.mark.parametrize("entry", ["model.layers.3*", "layers.0", r"re:model\.layers\.3.*"])
def test_entries_with_a_layers_number_are_dropped(written, entry):
    """At run time the draft's layers are numbered behind the target's: 30 to 39 begin with a 3."""
    found = written("modelopt FP8", ignore=[entry, "lm_head"])["ignore"]
    assert entry not in found
    assert {"lm_head", FC} <= set(found)


def test_a_plain_head_is_left_out(written):
    """ModelOpt's method quantises heads, too."""
    assert "lm_head" in written("modelopt FP8", ignore=[])["ignore"]


def test_older_files_of_modelopt(written):
    nested = {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    found = written("modelopt FP8", quant_algo=None, ignore=None, quantization=nested)["quantization"]
    assert found["quant_algo"] == "FP8"
    assert FC in found["exclude_modules"]


def test_what_gptq_quantises_is_listed(written):
    found = set(written("GPTQ", dynamic=None)["modules_in_block_to_quantize"])
    names = {"self_attn.qkv_proj", "self_attn.q_proj", "self_attn.o_proj", "mlp.gate_up_proj"}
    assert {f"model.layers.{LAYERS}.{name}" for name in names} <= found
    assert FC not in found
