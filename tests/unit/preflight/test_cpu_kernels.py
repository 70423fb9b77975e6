"""What is foreseen of a CPU's kernels, what vLLM's library really has, and what drafts need of them."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from tests.support.checkpoints import write_target
from tests.support.described import problems
from tests.support.drafting import resolve_draft
from tests.support.drafts import inspect, valid_draft, write
from tests.support.engine import TINY, has_gpu
from tests.support.quantised_drafts import FORMATS, quantised_draft
from vllm_eagle_ext import cpu_kernels, log
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.compat import vllm_version
from vllm_eagle_ext.cpu_kernels import (
    NEWEST,
    WITHOUT_PACKED,
    ForeseenKernels,
    LoadedKernels,
)
from vllm_eagle_ext.engine import CpuKernels
from vllm_eagle_ext.engine_rules.weights import BF16_FALLBACK, cpu_has_the_kernels
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.bench.progress import fallback_warning
from vllm_eagle_ext.preflight import of_vllm
from vllm_eagle_ext.preflight.check import CheckRequest, run_check

pytestmark = pytest.mark.skipif(has_gpu(), reason="asks for what vLLM's CPU platform does")
ON_X86 = cpu_kernels.platform.machine() in ("x86_64", "AMD64")
AVX2 = frozenset({"avx2", "fma"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
ZEN4 = AVX512 | {"avx512_vnni", "avx512_bf16"}
# Draft -> the one of the three kernels without which it is refused, and the words of the refusal.
NEEDS = {
    "compressed-tensors W4A16": ("packed_weights", "packed into integers"),
    "AWQ": ("packed_weights", "packed into integers"),
    "GPTQ": ("packed_weights", "packed into integers"),
    "compressed-tensors W8A8": ("exact_int8", "eight-bit integers"),
}
NEEDS_NONE = ("compressed-tensors FP8", "compressed-tensors NVFP4", "fp8")


def kernels(flags: frozenset[str]) -> ForeseenKernels:
    return ForeseenKernels("0.32.0", flags)


def answers(of: CpuKernels) -> dict[str, bool]:
    return {name: getattr(of, name) for name in ("packed_weights", "exact_int8", "bf16")}


@pytest.mark.skipif(not ON_X86, reason="flags of another kind of CPU")
@pytest.mark.parametrize(
    ("flags", "library", "packed", "int8", "bf16"),
    [
        (AVX2, "_C_AVX2", False, False, False),
        (AVX2 | {"avx_vnni"}, "_C_AVX2", False, True, False),
        (AVX512, "_C_AVX512", True, False, True),
        (AVX512 | {"avx512_vnni"}, "_C_AVX512", True, True, True),
        (ZEN4, "_C", True, True, True),
        (frozenset(), None, True, True, True),  # not told: nothing is refused
    ],
)
def test_what_flags_foresee(flags, library, packed, int8, bf16):
    found = kernels(flags)
    assert found.library == library
    assert answers(found) == {"packed_weights": packed, "exact_int8": int8, "bf16": bf16}


def test_what_is_foreseen_is_what_is_loaded():
    """Also with AVX2 alone: `make test ISA=avx2`."""
    foreseen, loaded = ForeseenKernels(vllm_version()), LoadedKernels()
    assert foreseen.packed_weights == loaded.packed_weights
    if ON_X86:
        assert answers(foreseen) == answers(loaded)
        assert (foreseen.library == "_C_AVX2") is not torch.cpu._is_avx512_supported()
        assert (foreseen.library == "_C") is torch.cpu._is_avx512_bf16_supported()


@pytest.mark.skipif(
    "ISA_LIMIT" not in os.environ, reason="of a process that is limited to a smaller set"
)
def test_a_limited_process_is_limited_everywhere():
    assert not torch.cpu._is_avx512_supported()
    assert not torch.cpu._is_amx_tile_supported()
    assert torch.backends.cpu.get_cpu_capability() == "AVX2"
    assert answers(LoadedKernels()) == answers(kernels(AVX2))
    child = "import torch; print(torch.cpu._is_avx512_supported())"
    assert subprocess.check_output([sys.executable, "-c", child], text=True) == "False\n"


@pytest.mark.skipif(not ON_X86, reason="libraries of another kind of CPU")
@pytest.mark.parametrize("library", ["_C_AVX2", "_C_AVX512", "_C"])
def test_the_table_is_what_the_libraries_hold(library):
    """Each is loaded in a process of its own, as far as this CPU can run it."""
    needs = {"_C_AVX2": "avx2", "_C_AVX512": "avx512f", "_C": "avx512_bf16"}[library]
    if needs not in cpu_kernels.cpu_flags():
        pytest.skip(f"this CPU lacks {needs}")
    import vllm

    path = Path(vllm.__file__).parent / f"{library}.abi3.so"
    loading = f"import torch; torch.ops.load_library({str(path)!r})"
    child = f"{loading}; print(hasattr(torch.ops._C, 'cpu_gemm_wna16'))"
    held = subprocess.check_output([sys.executable, "-c", child], text=True).strip() == "True"
    release = ".".join(vllm_version().split(".")[:2])
    assert held is (library not in WITHOUT_PACKED.get(release, WITHOUT_PACKED[NEWEST]))


@pytest.mark.promise("a quantised draft without a kernel on this CPU is refused")
@pytest.mark.skipif(not ON_X86, reason="flags of another kind of CPU")
@pytest.mark.parametrize(("format_", "need"), NEEDS.items())
def test_a_draft_without_its_kernel_is_refused(format_, need, tmp_path):
    case = inspect(quantised_draft("native", format_).draft, tmp_path).case
    assert not refusals(case, ZEN4)
    (found,) = refusals(case, AVX2)
    assert re.search(f"{need[1]}.*kernel|{need[1]}.*VNNI", str(found))
    assert "plain weights" in found.remedy
    packed_on_avx512 = need[0] == "packed_weights"  # which has no VNNI yet
    said = [str(one) for one in refusals(case, AVX512)]
    assert len(said) == (0 if packed_on_avx512 else 1)
    assert all("silently" in one for one in said)


@pytest.mark.parametrize("format_", NEEDS_NONE)
def test_other_formats_pass(format_, tmp_path):
    formats = [name for name in FORMATS if name.startswith(format_)]
    assert formats
    for name in formats:
        case = inspect(quantised_draft("native", name).draft, tmp_path / name).case
        assert not refusals(case, AVX2)
    assert not refusals(inspect(valid_draft("native"), tmp_path / "plain").case, AVX2)


def refusals(case, flags):
    return problems(cpu_has_the_kernels, case, platform="cpu", cpu_kernels=kernels(flags))


@pytest.mark.skipif(not ON_X86, reason="flags of another kind of CPU")
@pytest.mark.parametrize("format_", NEEDS)
def test_check_and_a_start_refuse_the_same(format_, tmp_path, monkeypatch):
    """On this CPU as it is, and as it would be with AVX2 alone."""
    draft = quantised_draft("native", format_).draft
    for name, found in (("here", None), ("avx2", kernels(AVX2))):
        if found:
            monkeypatch.setattr(cpu_kernels, "cpu_flags", lambda: AVX2)
            monkeypatch.setattr(of_vllm, "LoadedKernels", lambda found=found: found)
        path = write(draft, tmp_path / name / "draft")
        told = _verdict(path, tmp_path / name)
        assert told == _refusal(draft, tmp_path / name)
        assert bool(told) or not found


def _refusal(draft, folder):
    try:
        resolve_draft(folder, draft)
    except SpeculativeConfigError as refused:
        return [(refused.field, refused.value, refused.allowed)]
    return []


def _verdict(path, folder):
    request = CheckRequest(
        draft=str(path), target=str(write_target(folder / "target")), platform="cpu", options={}
    )
    found = run_check(request).inspection.errors
    return [(f.problem.field, f.problem.value, f.problem.allowed) for f in found]


@pytest.mark.skipif(not ON_X86, reason="flags of another kind of CPU")
@pytest.mark.parametrize("flags", [AVX2, ZEN4])
def test_bf16_is_said_to_fall_back(flags, monkeypatch):
    monkeypatch.setattr("vllm_eagle_ext.preflight.platforms.find_cpu_kernels", lambda *_: kernels(flags))
    monkeypatch.setattr("vllm_eagle_ext.measure.bench.progress.find_cpu_kernels", lambda: kernels(flags))
    said = flags == AVX2
    for dtype, expected in (("auto", said), ("bfloat16", said), ("float32", False)):
        request = CheckRequest(
            engine={"dtype": dtype},
            draft=str(TINY / "postnorm"),
            target=str(TINY / "target"),
            platform="cpu",
            options={},
        )
        found = [str(f.problem) for f in run_check(request).inspection.warnings]
        assert any(BF16_FALLBACK in text for text in found) is expected
        assert bool(list(fallback_warning({"dtype": dtype}))) is expected


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_arm_has_no_kernel_for_packed_weights(machine, monkeypatch):
    monkeypatch.setattr(cpu_kernels.platform, "machine", lambda: machine)
    assert answers(kernels(frozenset())) == {"packed_weights": False, "exact_int8": True, "bf16": True}


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


@pytest.mark.skipif(not ON_X86, reason="flags of another kind of CPU")
@pytest.mark.parametrize("flags", [AVX2, ZEN4])
def test_status_and_the_demo_say_it_too(flags, monkeypatch):
    from examples.demo.__main__ import choose_dtype

    monkeypatch.setattr(cpu_kernels, "cpu_flags", lambda: flags)
    said = CliRunner().invoke(app, ["status"]).stdout
    assert (BF16_FALLBACK in said) is ("such drafts are refused" in said) is (flags == AVX2)
    assert choose_dtype() == ("float32" if flags == AVX2 else "auto")


@pytest.mark.skipif(not ON_X86, reason="flags of another kind of CPU")
@pytest.mark.parametrize("flags", [AVX2, ZEN4])
def test_a_start_says_that_bf16_falls_back(flags, monkeypatch, tmp_path, vllm_log):
    log.log_once.cache_clear()
    vllm_log.setLevel(logging.WARNING)
    monkeypatch.setattr(of_vllm, "LoadedKernels", lambda: kernels(flags))
    resolve_draft(tmp_path, valid_draft("native"), online="fp8_per_channel")  # whose target is in bf16
    assert bool(vllm_log.containing(BF16_FALLBACK)) is (flags == AVX2)
