"""`--target-revision`: config, tokenizer and engine are those of that commit of the target."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.engine import ROOT, TINY
from tests.support.layouts import in_hub_cache

PROGRAM = """
import json, sys
from vllm_eagle_ext.measure.verify.request import plain_arguments, read_verify_request
from vllm_eagle_ext.plan.model_files import open_model

draft, revision = sys.argv[1:]
given = dict.fromkeys(
    ("k", "method", "revision", "prompts", "num_prompts", "max_tokens", "samples", "chat_template",
     "thinking", "tie_gap", "reference")
) | {"draft": draft, "target": "owner/draft", "target_revision": revision or None, "quick": True,
     "engine": {}, "eagle_ext": {}, "concurrency": 1}
request = read_verify_request(given)
model = open_model("owner/draft", field="--target", revision=revision or None)
size = model.config["vocab_size"]
print(json.dumps([len(request.prompts.ids), plain_arguments(request)["revision"], size]))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A hub's cache with one commit, which is not the one of `main`."""
    folder = tmp_path_factory.mktemp("hub")
    snapshot = in_hub_cache(folder, TINY / "target")
    (snapshot.parents[1] / "refs/main").write_text("f" * 40)
    return folder, snapshot.name


def run(cache, revision):
    environment = os.environ | {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", PROGRAM, str(TINY / "postnorm"), revision]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_verify_and_plan_read_that_commit(cache):
    folder, commit = cache
    assert json.loads(run(folder, commit).stdout.splitlines()[-1]) == [6, commit, 1536]


def test_without_it_they_read_main(cache):
    result = run(cache[0], "")
    assert result.returncode != 0
    assert "owner/draft" in result.stderr.splitlines()[-1]
