# SPDX-License-Identifier: Apache-2.0
"""Step times in the shapes of a published pair, without its checkpoints; of a hybrid: `benchmarks.gpu`.

    python -m benchmarks.gpu_shapes [--concurrency 1,8,32] [--out FOLDER]
    python -m benchmarks.gpu_shapes --scale cpu         # smaller ones of real width, for a CPU
    python -m benchmarks.gpu_shapes --scale tiny        # any machine: proves that the script works

Targets get dummy weights, drafts random ones in files of their own: a draft with dummy weights would
share the target's head. Acceptance is fixed by vLLM's synthetic rejection. A step's time depends on
neither.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import save_file

from benchmarks.shapes.dense import LLAMA_8B, Dense
from vllm_eagle_ext.memory.device import LoadedKernels

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Pair:
    """A target and its drafts as folders, and how they are measured."""

    name: str
    target: Path
    drafts: list[Path]
    k: int
    acceptance: str  # as --synthetic-acceptance takes it
    engine: dict[str, Any] = field(default_factory=dict)


def dense_pair(shape: Dense, folder: Path) -> Pair:
    kinds: dict[str, dict[str, bool]] = {
        "native": {},
        "postnorm": {"post_norm": True},
        "gated": {"post_norm": True, "gated": True},
    }
    target = write(folder / "llama-8b" / "target", shape.target())
    drafts = [
        write(folder / "llama-8b" / name, shape.draft(**kind), shape.tensors(**kind))
        for name, kind in kinds.items()
    ]
    return Pair("llama-8b", target, drafts, k=5, acceptance="0.75,0.55,0.40,0.30,0.22", engine=dtype())


def dtype() -> dict[str, str]:
    """Take float32 where a CPU's bf16 is a fallback that takes K + 1 times as long for K + 1 rows."""
    falls_back = not torch.cuda.is_available() and not LoadedKernels().bf16
    return {"dtype": "float32"} if falls_back else {}


def write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if tensors is not None:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def command(
    pair: Pair, *, concurrency: str, prompt_tokens: int, max_tokens: int, repeats: int,
    engine: dict[str, Any],
) -> list[str]:  # fmt: skip
    most = max(int(part) for part in concurrency.split(","))
    argv = [str(Path(sys.executable).with_name("vllm-eagle")), "bench"]
    argv += [*map(str, pair.drafts), "--dummy"]
    argv += ["--target", str(pair.target), "-k", str(pair.k), "--concurrency", concurrency]
    argv += ["--prompt-tokens", str(prompt_tokens), "--num-prompts", str(2 * most)]
    argv += ["--max-tokens", str(max_tokens), "--repeats", str(repeats), "--rounds", "1"]
    # Room for a step beyond the last: near the end of max_model_len stock vLLM drafts for nobody.
    length = {"max_model_len": prompt_tokens + max_tokens + 2 * (pair.k + 1)}
    argv += ["--engine", json.dumps({**length, **pair.engine, **engine})]
    return [*argv, "--synthetic-acceptance", pair.acceptance]


def main(
    scale: Annotated[str, typer.Option(help="real, cpu or tiny.")] = "real",
    concurrency: Annotated[str, typer.Option(help="As for vllm-eagle bench.")] = "1,8,32",
    prompt_tokens: Annotated[int, typer.Option()] = 1024,
    max_tokens: Annotated[int, typer.Option()] = 256,
    repeats: Annotated[int, typer.Option()] = 2,
    engine: Annotated[str, typer.Option(help="Further arguments of LLM() as JSON.")] = "{}",
    models: Annotated[Path, typer.Option(help="Where targets and drafts are written.")] = Path(
        "build/shapes"
    ),
    out: Annotated[Path, typer.Option(help="A folder of vllm-eagle bench for each pair.")] = Path(
        "build/gpu_shapes"
    ),
) -> None:
    """Measure the pair without a draft, with stock vLLM and with this package."""
    if scale not in LLAMA_8B:
        raise typer.BadParameter(f"--scale {scale}: real, cpu or tiny")
    pair = dense_pair(LLAMA_8B[scale], models / scale)
    line = command(
        pair, concurrency=concurrency, prompt_tokens=prompt_tokens, max_tokens=max_tokens,
        repeats=repeats, engine=json.loads(engine),
    )  # fmt: skip
    line += ["--result-dir", str(out / f"{scale}-{pair.name}")]
    print(" ".join(line), flush=True)
    raise SystemExit(subprocess.run(line, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    typer.run(main)
