"""Triton's own compilation is timed, for a GPU that need not be there."""

from __future__ import annotations

import time
from importlib.util import find_spec

import pytest

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vllm_eagle_ext.replay.ops import triton_plan
from vllm_eagle_ext.replay.self_check.compared import compile_time


def compile_a_kernel() -> None:
    kernel = triton_plan._gather_blocks
    names = kernel.arg_names
    constants = {"MAPPED": True, "ALIGNED": True, "BLOCK": 128}
    types = dict.fromkeys(names, "i32") | {"addresses": "*i64"}
    types |= dict.fromkeys(("rows_of", "seq_lens", "out"), "*i32")
    types |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, types, {(names.index(name),): v for name, v in constants.items()})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))


def test_what_triton_compiles_is_timed(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    heard = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **told: heard.append(told["cache_hit"]))
    with compile_time() as compiling:
        assert compiling() == 0
        started = time.perf_counter()
        compile_a_kernel()
        taken, first = 1e3 * (time.perf_counter() - started), compiling()
        compile_a_kernel()
        second = compiling() - first
    assert 0.5 * taken < first <= taken
    assert second < 0.5 * first  # from Triton's cache
    assert heard == [False, True]  # who listened before still does
    compile_a_kernel()
    assert compiling() == first + second
