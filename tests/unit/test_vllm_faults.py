"""docs/vllm_faults.md: each script still shows its fault, and page, scripts and vLLM agree."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from packaging.version import Version

from tests.support.engine import has_gpu
from vllm_eagle_ext.compat import vllm_version

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "vllm_eagle_ext"
FOLDER = ROOT / "docs/vllm_faults"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
TEXT = (ROOT / "docs/vllm_faults.md").read_text()
PARTS = ["Symptom", "Cause", "Releases", "Shown by", "Workaround", "Can go when"]
KINDS = ["Worked around", "Refused beforehand", "Explains an observation"]
PLACE = re.compile(r"`([\w/]+\.py)`, `([\w.]+)`")
LIMIT_S = 300


def sections() -> dict[str, dict[str, str]]:
    """Title -> part -> text, of each fault."""
    found = {}
    for section in re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        body = re.split(r"^## ", body, flags=re.MULTILINE)[0]
        parts = re.findall(r"^- \*\*([\w ]+)\.\*\* (.+(?:\n  .+)*)", body, re.MULTILINE)
        found[title] = {name: re.sub(r"\s+", " ", text) for name, text in parts}
    return found


SECTIONS = sections()
SCRIPT = re.compile(r"python docs/vllm_faults/(\w+)\.py")
SECTION_OF = {
    name: title for title, parts in SECTIONS.items() for name in SCRIPT.findall(parts["Shown by"])
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, tuple[int, str]]:
    result = tmp_path_factory.mktemp("faults") / "result.json"
    scripts = [str(FOLDER / f"{name}.py") for name in SCRIPTS]
    stock = {"VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "tests.support.vllm_faults_process", str(result), *scripts],
        cwd=ROOT,
        env={**os.environ, **stock},
        check=True,
        timeout=LIMIT_S,
    )
    return json.loads(result.read_text())


@pytest.mark.skipif(has_gpu(), reason="faults of vLLM's CPU build are among them")
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_fault_is_still_there(name, outcomes):
    status, said = outcomes[name]
    parts = SECTIONS[SECTION_OF[name]]
    if "fixed in 0.33" in parts["Releases"] and Version(vllm_version()) >= Version("0.33"):
        assert (status, said.splitlines()[-1].partition(":")[0]) == (1, "fault gone"), said
        return
    assert status in (0, 1), f"the script failed; if vLLM moved the place, correct it:\n{said}"
    assert status == 0, (
        f"vLLM no longer has this fault: remove the workaround ({parts['Workaround']}) and the page's "
        f"section {SECTION_OF[name]!r}.\n{said}"
    )
    last = said.splitlines()[-1]
    assert last.startswith("fault present: "), said


def test_every_script_has_one_section():
    named = [name for parts in SECTIONS.values() for name in SCRIPT.findall(parts["Shown by"])]
    assert sorted(named) == SCRIPTS


@pytest.mark.parametrize("title", SECTIONS)
def test_a_section_has_all_parts(title):
    parts = SECTIONS[title]
    assert list(parts) == PARTS
    shown = parts["Shown by"]
    assert SCRIPT.search(shown) or shown.startswith("No script: "), shown
    assert re.match(r"0\.32\b", parts["Releases"])


def test_the_table_lists_the_sections_in_order():
    """By name and link, with the script and the kind."""
    rows = re.findall(
        r"^\| \[(.+?)\]\(#([\w-]+)\) \| .+ \| .+ \| (?:`(\w+)\.py`|-) \|$", TEXT, re.MULTILINE
    )
    assert [title for title, _, _ in rows] == list(SECTIONS)
    for title, anchor, script in rows:
        assert anchor == re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        assert SECTION_OF.get(script, title) == title
        assert bool(script) == bool(SCRIPT.search(SECTIONS[title]["Shown by"]))
    assert re.findall(r"^\| \*\*(.+)\*\* \|", TEXT, re.MULTILINE) == KINDS


@pytest.mark.parametrize("title", SECTIONS)
def test_the_cause_names_places_that_exist(title):
    """In the installed release."""
    places = PLACE.findall(SECTIONS[title]["Cause"])
    assert places
    for path, name in places:
        assert name in names_of(vllm_folder() / path), f"{path} has no {name}"


def test_the_workarounds_name_places_that_exist():
    """In this package: each file, and each function or class that is named behind its file."""
    places = set()
    for parts in SECTIONS.values():
        for path in re.findall(r"`([\w/]+(?:\.py|/))`", parts["Workaround"]):
            assert (PACKAGE / path).exists(), f"there is no {path}"
        places.update(PLACE.findall(parts["Workaround"]))
    assert places
    for path, name in sorted(places):
        assert name in names_of(PACKAGE / path), f"{path} has no {name}"


@cache
def vllm_folder() -> Path:
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


@cache
def names_of(path: Path) -> frozenset[str]:
    """Functions and classes of a file, methods as Class.method."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
            names.update(f"{node.name}.{each.name}" for each in methods)
    return frozenset(names)


def test_scripts_need_vllm_alone():
    for name in SCRIPTS:
        text = (FOLDER / f"{name}.py").read_text()
        assert "vllm_eagle_ext" not in text
        assert len(text.splitlines()) <= 40, name
