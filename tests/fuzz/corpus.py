"""The smallest inputs that once forged a line, hung, ended in a traceback or hid from `check`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.fuzz.changes import SLOW, SPOOF, Change, edit
from tests.fuzz.subjects import Subject

_GROUP = {"targets": [5], "weights": {"num_bits": 8}}
_KEYS = {
    # a forged line, a cleared screen, a lone surrogate
    f"norm_{SPOOF}": 1, "norm_\ud800": 2.5, "rope_scaling": {"rope_type": SPOOF, "factor": 2},
    # types that transformers or vLLM enforce
    "tie_word_embeddings": None, "torch_dtype": "auto", "initializer_range": 1, "pad_token_id": "x",
    # patterns and rules without an end
    "quantization_config": {"quant_method": "gptq", "bits": 4, "dynamic": {SLOW: {"bits": 8}}},
    "compression_config": {"quant_method": "compressed-tensors", "config_groups": {"g": _GROUP}},
    # many warnings, and numbers that ask for memory or for drafts
    "rope_parameters": {f"norm_{i}": i for i in range(20_000)},
    "max_position_embeddings": 2**31 - 1, "speculative_tokens": 2**31 - 1,
}  # fmt: skip
_QUANTISATIONS = (
    {"quant_method": "gptq", "bits": 4, "dynamic": {f"layer_{i}": {"bits": 8} for i in range(3000)}},
    {"quant_method": "gptq", "bits": 4, "dynamic": {"a{99999999999}": {}, "(" * 3000: {}}},
    {"quant_method": "Compressed_Tensors", "ignore": [f"re:{SLOW}"], "config_groups": {"g": _GROUP}},
    {"quant_method": SPOOF}, {"quant_method": 5},
    {"quant_method": "auto-round", "extra_config": {SLOW: 1}},
)  # fmt: skip
_HEADERS = {
    "__metadata__": {"format": 5},
    f"layers.{'9' * 5000}.mlp.down_proj.weight": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]},
}
_FILES = {
    "draft/consolidated.safetensors": b"", "draft/._model.safetensors": b"\x00\x05\x16\x07" * 9,
    "draft/model.safetensors.index.json": json.dumps({"weight_map": {"x": "../../x"}}).encode(),
}  # fmt: skip
_SPECULATIVE = ({"x": 1}, {"quantization": 5}, {"draft_tensor_parallel_size": "x"}, {SPOOF: SPOOF})


def corpus(tiny: list[Subject]) -> Iterator[tuple[Subject, list[Change]]]:
    """Yield each of them for every tiny draft."""
    changes = [edit("config", (key,), value) for key, value in _KEYS.items()]
    changes += [edit("config", ("quantization_config",), value) for value in _QUANTISATIONS]
    changes += [edit("header", (key,), value) for key, value in _HEADERS.items()]
    changes += [edit("target", ("architectures",), [SPOOF]), edit("target", ("layer_types",), 5)]
    changes += [_file(name, content) for name, content in _FILES.items()]
    changes += [_speculative(json.dumps(value)) for value in _SPECULATIVE]
    for subject in tiny:
        yield from ((subject, [change]) for change in changes)


def _file(name: str, content: bytes) -> Change:
    return Change(f"file {name}", lambda case: case.files.update({name: content}))


def _speculative(text: str) -> Change:
    return Change(f"--speculative {text!r}", lambda case: case.options.update({"--speculative": text}))
