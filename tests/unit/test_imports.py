"""Each module of benchmarks and tools can be imported: most are run by hand only."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks
import tools

NAMES = [
    module.name
    for package in (benchmarks, tools)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_imported(name):
    importlib.import_module(name)
