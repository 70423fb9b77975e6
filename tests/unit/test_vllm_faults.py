"""docs/dev/vllm_faults.md: each script still shows its fault, and page, scripts and vLLM agree."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from packaging.version import Version

from tests.support.engine import ROOT, has_gpu
from tools.faults_page import FIELDS, FOLDER, KINDS, faults
from vllm_eagle_ext.compat import vllm_version

PACKAGE = ROOT / "vllm_eagle_ext"
FAULTS = {fault.path.stem: fault for fault in faults()}
SCRIPTS = sorted(name for name, fault in FAULTS.items() if fault.has_script)
PLACE = re.compile(r"`([\w/]+\.py)`, `([\w.]+)`")
LIMIT_S = 300
STOCK = {"VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}


@pytest.mark.long
@pytest.mark.skipif(has_gpu(), reason="faults of vLLM's CPU build are among them")
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_fault_is_still_there(name):
    script = [sys.executable, str(FOLDER / f"{name}.py")]
    done = subprocess.run(
        script, env=os.environ | STOCK, stdout=-1, stderr=-2, text=True, timeout=LIMIT_S, check=False
    )
    status, said = done.returncode, done.stdout
    parts = FAULTS[name].parts
    if "fixed in 0.33" in parts["Releases"] and Version(vllm_version()) >= Version("0.33"):
        assert (status, said.splitlines()[-1].partition(":")[0]) == (1, "fault gone"), said
        return
    assert status in (0, 1), f"the script failed; if vLLM moved the place, correct it:\n{said}"
    assert status == 0, (
        f"the fault is gone: remove script and workaround ({parts['Workaround']}).\n{said}"
    )
    last = said.splitlines()[-1]
    assert last.startswith("fault present: "), said


@pytest.mark.parametrize("name", FAULTS)
def test_a_docstring_has_all_parts(name):
    fault = FAULTS[name]
    missing = [field for field in FIELDS if field.startswith("[") and field[1:-1] not in fault.parts]
    expected = [field.strip("[]") for field in FIELDS if field not in missing]
    assert list(fault.parts) == expected
    assert fault.has_script != ("No script" in fault.parts)
    assert fault.parts["Kind"].rstrip(".") in KINDS
    assert re.match(r"0\.32\b", fault.parts["Releases"])


def test_the_workarounds_name_places_that_exist():
    """In this package: each file, and each function or class that is named behind its file."""
    places = set()
    for parts in (fault.parts for fault in FAULTS.values()):
        for path in re.findall(r"`([\w/]+(?:\.py|/))`", parts["Workaround"]):
            assert (PACKAGE / path).exists(), f"there is no {path}"
        places.update(PLACE.findall(parts["Workaround"]))
    assert places
    for path, name in sorted(places):
        assert name in names_of(PACKAGE / path), f"{path} has no {name}"


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
