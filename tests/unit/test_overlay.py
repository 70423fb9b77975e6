"""What tools/overlay.py changes in vLLM 0.33's Python files, so that older compiled ones serve them."""

from __future__ import annotations

import enum
from types import SimpleNamespace

import pytest

from tools import overlay

# As in 0.33, shortened.
OPERATOR = """
def fused_experts_cpu(out, is_vnni, act_method):
    torch.ops._C.fused_experts_cpu(
        out,
        is_vnni,
        act_method,
    )
"""


class CPUActMethod(enum.Enum):
    SILU_AND_MUL = 0
    GELU_AND_MUL = 1


@pytest.fixture
def site(tmp_path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/_custom_ops.py").write_text(OPERATOR)
    return tmp_path


def test_an_activation_that_the_older_kernel_lacks_ends_with_an_error(site):
    called = []
    compiled = SimpleNamespace(fused_experts_cpu=lambda *given: called.append(given))
    torch = SimpleNamespace(ops=SimpleNamespace(_C=compiled))
    names = {"torch": torch, "CPUActMethod": CPUActMethod}
    overlay.patch(site)
    exec((site / "vllm/_custom_ops.py").read_text(), names)
    names["fused_experts_cpu"]("out", True, CPUActMethod.SILU_AND_MUL)
    assert called == [("out", True)]
    with pytest.raises(NotImplementedError, match="GELU_AND_MUL"):
        names["fused_experts_cpu"]("out", True, CPUActMethod.GELU_AND_MUL)
    assert len(called) == 1


def test_a_release_that_is_otherwise_is_not_patched(site):
    (site / "vllm/_custom_ops.py").write_text(OPERATOR.replace("act_method,\n", ""))
    with pytest.raises(SystemExit, match="has 0 places like"):
        overlay.patch(site)


def test_what_was_made_of_other_files_is_made_anew(tmp_path, monkeypatch):
    below, wheel = tmp_path / "below", tmp_path / "vllm-0.33.0.whl"
    below.mkdir()
    monkeypatch.setattr(overlay, "BELOW", below)
    seen = set()
    for ready, content in (("a", "x"), ("b", "x"), ("b", "xy"), ("b", "xy")):
        (below / "ready").write_text(ready)
        wheel.write_text(content)
        seen.add(overlay.fingerprint(wheel))
    assert len(seen) == 3


@pytest.mark.parametrize("name", ["vllm/_C.abi3.so", "vllm/vllm-rs", "vllm/third_party/a.cuh"])
def test_compiled_files_of_the_wheel_are_left_out(name):
    assert name.endswith(overlay.COMPILED_FOR_CUDA)
    assert not "vllm/entrypoints/cli/main.py".endswith(overlay.COMPILED_FOR_CUDA)
