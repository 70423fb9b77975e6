"""What vLLM's library for this CPU really has, and what drafts need of it."""

from __future__ import annotations

import logging
import os
import platform
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from tests.support.described import changed, problems, tiny_config
from tests.support.drafting import resolve_draft
from tests.support.drafts import inspect, valid_draft
from tests.support.engine import has_gpu, lacks_avx512
from tests.support.quantised_drafts import FORMATS, quantised_draft
from tests.support.releases import is_release
from vllm_eagle_ext import log
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.memory.device import LoadedKernels
from vllm_eagle_ext.start.rules import weights
from vllm_eagle_ext.start.rules.weights import BF16_FALLBACK, cpu_has_the_kernels, dtype_has_a_kernel

pytestmark = pytest.mark.skipif(has_gpu(), reason="asks for what vLLM's CPU platform does")
ON_X86 = platform.machine() in ("x86_64", "AMD64")
ALL = {"packed_weights": True, "exact_int8": True, "bf16": True, "tiles": True}
AVX2 = dict.fromkeys(ALL, False)
AVX512 = ALL | {"exact_int8": False, "tiles": False}  # without VNNI
# Draft -> the kernel without which it is refused, and the words of the refusal.
NEEDS = {
    "compressed-tensors W4A16": ("packed_weights", "packed into integers.*kernel"),
    "AWQ": ("packed_weights", "packed into integers.*kernel"),
    "GPTQ": ("packed_weights", "packed into integers.*kernel"),
    "compressed-tensors W8A8": ("exact_int8", "eight-bit integers.*VNNI.*silently"),
}
NEEDS_NONE = ("compressed-tensors FP8", "compressed-tensors NVFP4", "fp8")


@pytest.fixture
def limit(monkeypatch):
    """Let the rules see other kernels than this CPU's."""

    def to(kernels):
        monkeypatch.setattr(weights, "loaded_kernels", lambda: SimpleNamespace(**kernels))

    return to


@pytest.mark.skipif(not ON_X86, reason="a question of x86's libraries")
def test_avx512_tells_which_kernels_there_are():
    """Also with AVX2 alone: `tools/isa.py avx2`. A command that imports no vLLM goes by this."""
    loaded = LoadedKernels()
    assert loaded.bf16 is not lacks_avx512()
    if is_release("0.32"):
        assert loaded.packed_weights is not lacks_avx512()


@pytest.mark.skipif(
    "ISA_LIMIT" not in os.environ, reason="of a process that is limited to a smaller set"
)
def test_a_limited_process_is_limited_everywhere():
    assert lacks_avx512()
    assert not torch.cpu._is_amx_tile_supported()
    assert torch.backends.cpu.get_cpu_capability() == "AVX2"
    loaded = LoadedKernels()
    assert {name: getattr(loaded, name) for name in AVX2} == AVX2
    child = "import torch; print(torch.cpu._is_avx512_supported())"
    assert subprocess.check_output([sys.executable, "-c", child], text=True) == "False\n"


@pytest.mark.promise("a quantised draft without a kernel on this CPU is refused")
@pytest.mark.parametrize(("format_", "need"), NEEDS.items())
def test_a_draft_without_its_kernel_is_refused(format_, need, tmp_path, limit):
    case = inspect(quantised_draft("native", format_).draft, tmp_path).case
    for kernels in (ALL, AVX512, AVX2):
        limit(kernels)
        fired = problems(cpu_has_the_kernels, tiny_config(), case)
        assert len(fired) == (not kernels[need[0]])
        assert all(re.search(need[1], str(problem)) for problem in fired)
        assert all("plain weights" in problem.remedy for problem in fired)


@pytest.mark.parametrize("format_", NEEDS_NONE)
def test_other_formats_pass(format_, tmp_path, limit):
    limit(AVX2)
    formats = [name for name in FORMATS if name.startswith(format_)]
    assert formats
    drafts = [quantised_draft("native", name).draft for name in formats] + [valid_draft("native")]
    for number, draft in enumerate(drafts):
        case = inspect(draft, tmp_path / str(number)).case
        assert not problems(cpu_has_the_kernels, tiny_config(), case)


def test_a_start_refuses_it(tmp_path, limit):
    limit(AVX2)
    with pytest.raises(SpeculativeConfigError, match="eight-bit integers"):
        resolve_draft(tmp_path, quantised_draft("native", "compressed-tensors W8A8").draft)


@pytest.mark.parametrize("kernels", [AVX2, AVX512])
def test_bf16_is_said_to_fall_back(kernels, tmp_path, vllm_log, limit):
    limit(kernels)
    case = inspect(valid_draft("native"), tmp_path / "inspected").case
    for dtype, expected in (("bfloat16", not kernels["bf16"]), ("float32", False)):
        config = changed(tiny_config(), model_config__dtype=dtype)
        assert bool(problems(dtype_has_a_kernel, config, case)) is expected
    log.log_once.cache_clear()
    vllm_log.setLevel(logging.WARNING)
    resolve_draft(tmp_path, valid_draft("native"), online="fp8_per_channel")  # whose target is in bf16
    assert bool(vllm_log.containing(BF16_FALLBACK)) is not kernels["bf16"]


@pytest.mark.parametrize(
    ("held", "packed"), [([], True), (["rms_norm"], False), (["rms_norm", "cpu_gemm_wna16"], True)]
)
def test_a_library_that_did_not_load_is_no_reason_to_refuse(held, packed, monkeypatch):
    monkeypatch.setattr(torch.ops, "_C", SimpleNamespace(**dict.fromkeys(held)))
    assert LoadedKernels().packed_weights is packed


@pytest.mark.parametrize("raised", [TypeError, ValueError, AttributeError])
def test_what_cannot_be_asked_fails_no_start(raised, monkeypatch):
    def fails(*_):
        raise raised("another release")

    monkeypatch.setattr("vllm._custom_ops.create_onednn_mm", fails)
    monkeypatch.setattr("vllm._custom_ops.create_onednn_scaled_mm", fails)
    loaded = LoadedKernels()
    assert loaded.bf16
    assert loaded.exact_int8
