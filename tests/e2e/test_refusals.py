"""Bad input through `LLM()` and `vllm serve`: one clear error, before any weight is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkpoints import tiny_draft
from tests.support.engine import ROOT, TINY, engine_environment

pytestmark = pytest.mark.e2e

TRY_ALL = """
import json, sys
from vllm import LLM

for case in json.loads(sys.argv[1]):
    try:
        LLM(sys.argv[2], max_model_len=256, gpu_memory_utilization=0.3, **case)
        print("RESULT", json.dumps(["no error", ""]))
    except Exception as error:
        print("RESULT", json.dumps([type(error).__name__, str(error)]))
"""


def draft(model, k=4):
    return {"method": "eagle3", "model": str(model), "num_speculative_tokens": k}


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """All cases in one process: none of them gets as far as an engine."""
    folder = tmp_path_factory.mktemp("drafts")
    (folder / "empty").mkdir()
    no_weights = tiny_draft(folder / "no_weights")
    (no_weights / "model.safetensors").unlink()
    other_target = tiny_draft(folder / "other_target")
    options = {"eagle_ext": {"aux_layer": "output"}}
    cases = {
        "unknown_option": {"additional_config": options},
        "k_is_0": {"speculative_config": draft(TINY / "postnorm", k=0)},
        "no_config": {"speculative_config": draft(folder / "empty")},
        "no_weights": {"speculative_config": draft(no_weights)},
        "other_target": {"speculative_config": draft(other_target)},
    }
    result = subprocess.run(
        [sys.executable, "-c", TRY_ALL, json.dumps(list(cases.values())), str(TINY / "target")],
        cwd=ROOT,
        env=engine_environment("v1"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith("RESULT")]
    assert len(lines) == len(cases), result.stdout + result.stderr
    assert "Starting to load model" not in result.stdout + result.stderr
    return dict(zip(cases, (json.loads(line.removeprefix("RESULT ")) for line in lines), strict=True))


@pytest.mark.parametrize(
    ("case", "kind", "words"),
    [
        ("unknown_option", "OptionsError", ["aux_layer is 'output'", "aux_layers", "spelling"]),
        ("k_is_0", "SpeculativeConfigError", ["num_speculative_tokens is 0", "at least 1"]),
        ("no_config", "UnsupportedDraftError", ["empty", "config.json"]),
        ("no_weights", "UnsupportedDraftError", ["no_weights", "safetensors"]),
        (
            "other_target",
            "UnsupportedDraftError",
            ["probably another one", "hidden size 64 (here 192)", "trained for"],
        ),
    ],
)
def test_llm_says_field_value_allowed_and_remedy(errors, case, kind, words):
    found, message = errors[case]
    assert found == kind
    for word in [*words, "Allowed:", "What to do:"]:
        assert word in message


def test_vllm_serve_ends_with_the_message():
    command = [str(Path(sys.executable).parent / "vllm"), "serve", str(TINY / "target")]
    command += ["--host=127.0.0.1", "--port=0", "--max-model-len=256"]
    command += ["--speculative-config", json.dumps(draft(TINY / "postnorm", k=0))]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=engine_environment("v1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode != 0
    last = result.stdout.strip().splitlines()[-1]
    assert "num_speculative_tokens is 0. Allowed: an integer of at least 1." in last, result.stdout
    assert result.stdout.count("Traceback (most recent call last)") == 1
    assert "Starting to load model" not in result.stdout
