"""Bad input through `LLM()` and `vllm serve`: one clear error, before any weight is loaded."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import tiny_draft
from tests.support.engine import ROOT, TINY, engine_environment, has_gpu

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


def draft(model):
    return {"method": "eagle3", "model": str(model), "num_speculative_tokens": 4}


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


@pytest.mark.promise("a draft that does not fit is refused with the reason, before weights are loaded")
@pytest.mark.parametrize(
    ("case", "kind", "words"),
    [
        ("unknown_option", "OptionsError", ["aux_layer is 'output'", "aux_layers", "spelling"]),
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
    error, message = errors[case]
    assert error == kind
    for word in [*words, "Allowed:", "What to do:"]:
        assert word in message


BEGINS = "vllm-eagle-ext: the engine did not start: "
TWO_WORKERS = ("--tensor-parallel-size=2", {"VLLM_CPU_OMP_THREADS_BIND": "0|1"})
# vLLM takes a share of the memory only where no space for the cache is set.
NO_SPACE = {"VLLM_CPU_KVCACHE_SPACE": ""}


def speculative(model, **changes) -> list[str]:
    return ["--speculative-config", json.dumps(draft(model) | changes)]


def eagle_ext(**options) -> list[str]:
    return ["--additional-config", json.dumps({"eagle_ext": options})]


def other_target(folder: Path) -> Path:
    return tiny_draft(folder / "other_target")


def not_finite(folder: Path) -> Path:
    broken = shutil.copytree(TINY / "postnorm", folder / "not_finite")
    tensors = load_file(broken / "model.safetensors")
    tensors["fc.weight"].fill_(float("nan"))
    save_file(tensors, broken / "model.safetensors")
    return broken


def mistake(name, words, *arguments, target="target", model=TINY / "postnorm", **changes):
    """A case; most of those that `make test` leaves out take an engine's start each."""
    environment = next((arg for arg in arguments if isinstance(arg, dict)), {})
    given = [arg for arg in arguments if isinstance(arg, str)]
    tiers = {"k_is_0": [], "too_little_memory": [pytest.mark.full]}
    marks = tiers.get(name, [pytest.mark.long])
    if name in ("not_finite_in_two_workers", "too_little_memory"):
        marks.append(pytest.mark.skipif(has_gpu(), reason="of a CPU's memory and cores"))
    return pytest.param(target, model, changes, given, environment, words, id=name, marks=marks)


@pytest.mark.promise("a server that cannot start ends with the cause", id="k_is_0")
@pytest.mark.parametrize(
    ("target", "model", "changes", "arguments", "environment", "words"),
    [
        mistake("wrong_key", "aux_layer is 'output'", *eagle_ext(aux_layer="output")),
        mistake("k_is_0", "num_speculative_tokens: Input should be greater", num_speculative_tokens=0),
        mistake("typo_in_path", "examples/tiny/postnrm", model="examples/tiny/postnrm"),
        mistake("method_missing", 'write "method": "eagle3"', method=None),
        mistake("draft_of_another_target", "target", model=other_target),
        mistake("post_norm_on_hybrid", "target", target="hybrid_target"),
        mistake("replay_on_dense", "hybrid_state is 'replay'", *eagle_ext(hybrid_state="replay")),
        mistake(
            "prefix_caching_on_hybrid", "--no-enable-prefix-caching", "--enable-prefix-caching",
            target="hybrid_target", model=TINY / "dflash", method="dflash", num_speculative_tokens=7,
        ),
        mistake("not_finite", "values of fc.weight", model=not_finite),
        mistake("not_finite_in_two_workers", "values of fc.weight", *TWO_WORKERS, model=not_finite),
        mistake("three_workers", "tensor_parallel_size is 3", "--tensor-parallel-size=3"),
        mistake(
            "too_little_memory", "Available memory on node", "--gpu-memory-utilization=1.0", NO_SPACE
        ),
        mistake("bad_json", "--speculative-config", "--speculative-config={bad"),
    ],
)  # fmt: skip
def test_vllm_serve_ends_with_the_cause(
    target, model, changes, arguments, environment, words, tmp_path
):  # fmt: skip
    """The last line tells, whatever process failed, and no worker's traceback stands behind it."""
    command = [str(Path(sys.executable).parent / "vllm"), "serve", str(TINY / target)]
    command += ["--host=127.0.0.1", "--port=0", "--max-model-len=256", "--enforce-eager"]
    command += speculative(model(tmp_path) if callable(model) else model, **changes) + arguments
    began = time.monotonic()
    result = subprocess.run(
        command, cwd=ROOT, env=engine_environment("v1") | environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    # Python's tracker of shared memory may speak once all processes have ended.
    last = [line for line in result.stdout.strip().splitlines() if "resource_tracker" not in line][-1]
    print(f"\n{time.monotonic() - began:.0f} s: {last}")
    assert result.returncode != 0
    assert words in last, result.stdout[-3000:]
    own = re.match(r"\S*Error: vllm-eagle-ext: |vllm serve: error: ", last)
    assert own or last.startswith(BEGINS)
    if not words.startswith(("values", "Available", "--spec")):  # known before an engine starts
        assert "Starting to load model" not in result.stdout
        assert result.stdout.count("Traceback (most recent call last)") == 1
