"""Every format of quantised weights that vLLM serves, by its headers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.checkpoints import VOCAB
from tests.support.drafts import TARGET, valid_draft
from vllm_eagle_ext.draft import Inspection, TargetFacts, inspect_draft
from vllm_eagle_ext.draft.case import DraftRequest
from vllm_eagle_ext.draft.draft_files import DraftFiles
from vllm_eagle_ext.draft.headers import TensorHeader
from vllm_eagle_ext.draft.quantisation import named_for_vllm

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


def mxfp8(rows: int, columns: int) -> Headers:
    return {"weight": ("F8_E4M3", (rows, columns)), "weight_scale": ("U8", (rows, columns // 32))}


def awq(rows: int, columns: int) -> Headers:
    return {
        "qweight": ("I32", (columns, rows // 8)),
        "qzeros": ("I32", (groups(columns), rows // 8)),
        "scales": ("F16", (groups(columns), rows)),
    }


def gptq(rows: int, columns: int) -> Headers:
    return awq(rows, columns) | {
        "qweight": ("I32", (columns // 8, rows)),
        "g_idx": ("I32", (columns,)),
    }


def int4(rows: int, columns: int) -> Headers:
    return {
        "weight_packed": ("I32", (rows, columns // 8)),
        "weight_scale": ("BF16", (rows, groups(columns))),
        "weight_shape": ("I64", (2,)),
    }


def nvfp4(rows: int, columns: int) -> Headers:
    return {
        "weight_packed": ("U8", (rows, columns // 2)),
        "weight_scale": ("F8_E4M3", (rows, columns // 16)),
        "weight_global_scale": ("F32", (1,)),
        "input_global_scale": ("F32", (1,)),
    }


def nvfp4_of_modelopt(rows: int, columns: int) -> Headers:
    return {
        "weight": ("U8", (rows, columns // 2)),
        "weight_scale": ("F8_E4M3", (rows, columns // 16)),
        "weight_scale_2": ("F32", ()),
        "input_scale": ("F32", ()),
    }


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
            (
                fp8_blocks_of_compressed_tensors,
                {**COMPRESSED, "ignore": LEFT_OUT},
            ),
            (mxfp8, {**COMPRESSED, "ignore": LEFT_OUT}),
            (awq, {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["fc"]}),
            (gptq, {"quant_method": "gptq", "bits": 4, "desc_act": True}),
            (int4, {**COMPRESSED, "ignore": ["lm_head", "re:.*fc$"]}),
            (nvfp4, {**COMPRESSED, "ignore": LEFT_OUT}),
            (nvfp4_of_modelopt, {"quant_method": "modelopt", "exclude_modules": ["lm_head", "*fc"]}),
        ]
    ],
)
def test_quantised_as_vllm_serves_it(scheme, quantisation):
    inspection = inspect_headers(scheme, quantisation)
    assert inspection.findings == ()
    assert inspection.case


FC = "model.fc"
LISTS = {
    "fp8": "ignored_layers", "modelopt": "ignore", "awq": "modules_to_not_convert",
    "compressed-tensors": "ignore",
}  # fmt: skip


@pytest.mark.parametrize(
    ("scheme", "quantisation"),
    [
        pytest.param(fp8, {"quant_method": "fp8"}, id="fp8"),
        pytest.param(fp8, {"quant_method": "fp8", "ignored_layers": ["fc"]}, id="fp8_part_of_a_name"),
        pytest.param(awq, {"quant_method": "awq", "modules_to_not_convert": ["lm_head"]}, id="awq"),
        pytest.param(
            awq, {"quant_method": "awq", "modules_to_not_convert": ["*fc"]}, id="awq_knows_no_patterns"
        ),
        pytest.param(nvfp4, {**COMPRESSED, "ignore": ["re:.*head"]}, id="nvfp4"),
        pytest.param(
            nvfp4_of_modelopt, {"quant_method": "modelopt", "exclude_modules": ["fc?"]}, id="modelopt"
        ),
    ],
)
def test_a_plain_fc_is_left_out_whatever_the_list_says(scheme, quantisation):
    inspection = inspect_headers(scheme, quantisation)
    assert inspection.findings == ()
    written = named_for_vllm(inspection.case)[LISTS[quantisation["quant_method"]]]
    assert FC in written
    for key in (LISTS[quantisation["quant_method"]], "exclude_modules"):
        listed = {name for name in quantisation.get(key, ()) if not name.startswith("re:")}
        assert listed < set(written)
    # Of patterns vLLM gets the names of the modules that they fit.
    assert not [name for name in written if name.startswith("re:")]
    if "re:.*head" in quantisation.get("ignore", ()):
        assert "lm_head" in written


@pytest.mark.parametrize("entry", ["model.layers.3*", "layers.0", r"re:model\.layers\.3.*"])
def test_entries_with_a_layers_number_are_dropped(entry):
    """At run time the draft's layers are numbered behind the target's: 30 to 39 begin with a 3."""
    quantisation = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": [entry, "lm_head"]}
    written = named_for_vllm(inspect_headers(fp8, quantisation).case)["ignore"]
    assert entry not in written
    assert {"lm_head", FC} <= set(written)


def test_a_plain_head_is_left_out():
    """ModelOpt's method quantises heads, too."""
    inspection = inspect_headers(fp8, {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": []})
    assert "lm_head" in named_for_vllm(inspection.case)["ignore"]


def test_older_files_of_modelopt():
    nested = {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    inspection = inspect_headers(fp8, {"quant_method": "modelopt", "quantization": nested})
    written = named_for_vllm(inspection.case)["quantization"]
    assert written["quant_algo"] == "FP8"
    assert FC in written["exclude_modules"]


def test_what_gptq_quantises_is_listed():
    inspection = inspect_headers(gptq, {"quant_method": "gptq", "bits": 4})
    layer = f"model.layers.{inspection.case.target.num_layers}"
    names = {"self_attn.qkv_proj", "self_attn.q_proj", "self_attn.o_proj", "mlp.gate_up_proj"}
    written = set(named_for_vllm(inspection.case)["modules_in_block_to_quantize"])
    assert {f"{layer}.{name}" for name in names} <= written
    assert FC not in written
