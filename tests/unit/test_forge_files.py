"""Files that a forge and pre-commit read."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml

from tests.support.engine import ROOT
from vllm_eagle_ext import __version__

SCHEMAS = {
    ".github/workflows/ci.yml": "vendor.github-workflows",
    ".github/ISSUE_TEMPLATE/problem.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/gpu_figures.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
}


def is_valid(schema, path) -> bool:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("path", SCHEMAS)
def test_the_forge_takes_it(path):
    assert is_valid(SCHEMAS[path], ROOT / path)


def test_a_slip_is_seen(tmp_path):
    path = ".github/ISSUE_TEMPLATE/problem.yml"
    broken = tmp_path / "problem.yml"
    broken.write_text((ROOT / path).read_text().replace("type: textarea", "type: textbox", 1))
    assert not is_valid(SCHEMAS[path], broken)


def test_every_file_of_the_forge_has_a_schema():
    found = {str(path.relative_to(ROOT)) for path in (ROOT / ".github").rglob("*") if path.is_file()}
    assert found == set(SCHEMAS)


def test_a_push_runs_what_ci_runs():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert {"run": "bash .ci/run"} in workflow["jobs"]["run"]["steps"]


def test_pre_commit_runs_what_lint_runs():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [hook["entry"].removeprefix(".venv/bin/") for hook in repository["hooks"]]
    recipe = re.search(r"^lint: venv\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    tools = {re.sub(r"@\$\(BIN\)/", "", line).split(" --")[0] for line in recipe[1].split("\n\t")}
    assert {tool.split(" .")[0].strip() for tool in tools} == {
        entry.split(" --")[0] for entry in entries
    } | {"ruff format"}


def test_the_changelog_has_a_section_of_this_version():
    assert f"\n## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
