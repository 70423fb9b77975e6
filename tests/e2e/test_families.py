"""Each family through a real engine: served by our drafter, and the text is that without a draft."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.engine import ROOT, TIMEOUT_S, engine_environment

pytestmark = pytest.mark.e2e

LLAMA = "Eagle3EagleExtLlamaForCausalLM"
V1 = {
    "qwen3": "Eagle3EagleExtQwen3ForCausalLM",
    "norm_before_fc": LLAMA,
    "speculators": LLAMA,
    "p-eagle": LLAMA,
    "no_aux": LLAMA,
    "dflash": "DFlashEagleExtQwen3ForCausalLM",
    "bin": LLAMA,
}
V2 = {name: V1[name] for name in ("qwen3", "speculators", "dflash", "bin")}
# Other texts than without a draft, with stock vLLM too: its CPU kernel for rotary embeddings misreads
# the three-dimensional queries of latent attention, and the error depends on the size of the batch.
LATENT = {"latent": "Eagle3EagleExtDeepseekV2ForCausalLM"}


def serve(folder, runner: str, names: list[str]) -> tuple[dict, str]:
    result = folder / "result.json"
    environment = engine_environment(runner) | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one engine after the other, in one process
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # the test asks a worker for its drafter's name
    }
    module = "tests.support.families_process"
    process = subprocess.run(
        [sys.executable, "-m", module, str(folder), str(result), "none", *names],
        env=environment,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-4000:]
    return json.loads(result.read_text()), process.stdout


@pytest.fixture(scope="module")
def v1(tmp_path_factory):
    return serve(tmp_path_factory.mktemp("v1"), "v1", [*V1, *LATENT])


@pytest.fixture(scope="module")
def v2(tmp_path_factory):
    return serve(tmp_path_factory.mktemp("v2"), "v2", [*V2, *LATENT, "p-eagle", "no_aux"])


def check(results, name, drafter):
    result = results[name]
    assert "error" not in result, result["trace"]
    assert result["drafter"] == drafter
    assert result["drafts"] > 10
    if name not in LATENT:
        assert result["tokens"] == results["none"]["tokens"]


@pytest.mark.parametrize("name", [*V1, *LATENT])
def test_v1(v1, name):
    check(v1[0], name, (V1 | LATENT)[name])


@pytest.mark.v2
@pytest.mark.parametrize("name", [*V2, *LATENT])
def test_v2(v2, name):
    check(v2[0], name, (V2 | LATENT)[name])


@pytest.mark.v2
@pytest.mark.parametrize("name", ["p-eagle", "no_aux"])
def test_what_the_v2_runner_cannot_draft_is_refused_before_it_starts(v2, name):
    assert "UnsupportedDraftError" in v2[0][name]["error"]
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in v2[0][name]["error"]


def test_bin_weights_are_served_with_a_warning(v1):
    assert "weights of the draft is '.bin'" in v1[1]
