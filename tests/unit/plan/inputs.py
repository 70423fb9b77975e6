"""A target's files, and the device that most plans are for."""

from __future__ import annotations

import json

MIB, GIB = 2**20, 2**30
H200 = ("-k", "15", "--gpu-mem", "140", "--max-model-len", "32768")


def write_config(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def write_shard(path, tensors):
    """A safetensors file of these byte counts, without its bytes on the disk."""
    entries, end = {}, 0
    for name, size in tensors.items():
        entries[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)


def eagle3(folder, **changes):
    """An EAGLE-3 draft of one full layer, 8 KV heads of 128."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    write_config(folder, config | changes)
    write_shard(folder / "model.safetensors", {"layers.0.hidden_norm.weight": 4})
    return str(folder)
