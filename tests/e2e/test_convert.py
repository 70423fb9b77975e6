"""Stock vLLM drafts from converted drafts what this package drafts from the published ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.support.dense import FLOAT32, STOCK, dense
from tests.support.engine import ROOT, TINY
from tests.support.hybrid import assert_requests_add_up, per_position, started

pytestmark = pytest.mark.full
COUNTED = 4  # drafted tokens


def converted(draft: Path, folder: Path, form: str) -> Path:
    program = Path(sys.executable).parent / "vllm-eagle"
    command = [program, "convert", draft, folder, "--target", TINY / "target", "-k", str(COUNTED)]
    done = subprocess.run(
        [*map(str, command), "--format", form], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return folder


def with_a_map_of_another_name(folder: Path) -> Path:
    """The post-norm draft with a map that stock would leave out without a word."""
    shutil.copytree(TINY / "postnorm", folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["draft_id_to_target_id"] = tensors.pop("d2t")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def of(model: Path) -> dict[str, object]:
    return {"method": "eagle3", "model": str(model), "num_speculative_tokens": COUNTED}


@pytest.fixture(scope="module")
def served(tmp_path_factory, prompts):
    """Results of the post-norm pair by name, in float32, where no near-ties hide a difference."""
    folder = tmp_path_factory.mktemp("converted")
    own, named = (converted(TINY / "postnorm", folder / form, form) for form in ("own", "speculators"))
    mapped = converted(with_a_map_of_another_name(folder / "mapped"), folder / "renamed", "own")
    asked = {"prompts": prompts[:12], "max_tokens": 48, "engine_args": FLOAT32, "record": True}
    published = of(TINY / "postnorm")
    ours = started([dense("ours", speculative=published, **asked)])
    stock = started(
        [
            dense("published", speculative=published, **asked),
            dense("own", speculative=of(own), **asked),
            dense("renamed", speculative=of(mapped), **asked),
            # The draft names target and K; no key of speculative_config is given.
            dense("speculators", speculative={}, **asked | {"target": named}),
        ],
        **STOCK,
    )
    return ours | stock


@pytest.mark.parametrize("form", ["own", "speculators", "renamed"])
def test_stock_drafts_the_same_tokens(served, form):
    ours, stock = served["ours"], served[form]
    assert stock["drafts"] == ours["drafts"]
    assert stock["tokens"] == ours["tokens"]
    assert stock["counters"] == ours["counters"]
    assert per_position(stock)[0] > 50


def test_requests_add_up_to_what_vllm_counts(served):
    for name in ("ours", "own"):
        assert_requests_add_up(served[name])


def test_from_the_published_folder_stock_drafts_others(served):
    assert served["published"]["drafts"] != served["ours"]["drafts"]
    assert per_position(served["published"]) != per_position(served["ours"])
    assert served["published"]["tokens"] == served["ours"]["tokens"]
    print(json.dumps({name: per_position(result) for name, result in served.items()}))
