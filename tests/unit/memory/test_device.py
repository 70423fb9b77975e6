"""The rules of a release and a device against vLLM's own functions, which are told of a GPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backends import fa_utils, flash_attn

from vllm_eagle_ext.memory.device import ASSUMED_GPU, PREFILLS, Device

CAPABILITIES = [(8, 0), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)]


class Gpu:
    """A CUDA platform, as far as the two functions ask."""

    def __init__(self, capability, cuda):
        self.capability, self.cuda = DeviceCapability(*capability), cuda

    def is_cuda(self):
        return True

    def is_rocm(self):
        return False

    is_xpu = is_cpu = is_rocm

    def get_cuda_runtime_major(self):
        return self.cuda

    def get_device_capability(self):
        return self.capability

    def is_device_capability(self, asked):
        return self.capability.to_int() == asked

    def is_device_capability_family(self, asked):
        return self.capability.to_int() // 10 == asked // 10


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("cuda", [12, 13])
@pytest.mark.parametrize("asked", PREFILLS)
@pytest.mark.parametrize("key_dim", [64, 128])
def test_the_prefill_is_vllm_s(monkeypatch, capability, cuda, asked, key_dim):
    monkeypatch.setattr(qwen_gdn_linear_attn, "current_platform", Gpu(capability, cuda))
    text = SimpleNamespace(linear_key_head_dim=key_dim, linear_value_head_dim=128)
    config = SimpleNamespace(
        additional_config={"gdn_prefill_backend": asked},
        model_config=SimpleNamespace(hf_text_config=text),
    )
    _, theirs = qwen_gdn_linear_attn._resolve_gdn_prefill_backend(config)
    ours = Device(capability=capability, cuda=cuda, gdn_prefill=asked, key_dim=key_dim)
    assert ours.prefill == theirs


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("head_dim", [128, 256])
@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_a_draft_s_flash_attention_asks_for_its_pages(monkeypatch, capability, head_dim, dtype):
    """As if FlashAttention 2 to 4 were there. On sm_10x alone it does not serve the target as well."""
    interface = ModuleType("vllm.vllm_flash_attn.flash_attn_interface")
    interface.is_fa_version_supported = lambda _: True
    interface.fa_version_unsupported_reason = lambda _: None
    package = ModuleType("vllm.vllm_flash_attn")
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    for module in (fa_utils, flash_attn):
        monkeypatch.setattr(module, "current_platform", Gpu(capability, 13))
    model = SimpleNamespace(
        get_head_size=lambda: head_dim, is_mm_prefix_lm=False, rswa_window=None,
        hf_text_config=SimpleNamespace(),
    )  # fmt: skip
    config = SimpleNamespace(
        model_config=model,
        cache_config=SimpleNamespace(cache_dtype=dtype),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        attention_config=SimpleNamespace(flash_attn_version=None),
        compilation_config=SimpleNamespace(),
    )
    with set_current_vllm_config(config):
        (size,) = flash_attn.FlashAttentionBackend.get_supported_kernel_block_sizes()
    theirs = getattr(size, "base", size)
    ours = Device(capability=capability).attention_alignment(
        head_dim, element_bytes=1 if dtype == "fp8" else 2, non_causal_draft=True
    )
    assert (ours or 16) == theirs
    assert Device(capability=capability).attention_alignment(
        head_dim, element_bytes=2, non_causal_draft=False
    ) is None  # fmt: skip


@pytest.mark.parametrize(
    ("release", "exports"),
    [("0.32.0", False), ("0.32.1", False), ("0.33.0", True), ("0.34", True), ("dev", True)],
)
def test_states_are_exported_from_033_on(release, exports):
    on_gpu = Device(release=release, capability=ASSUMED_GPU, key_dim=128)
    assert on_gpu.prefill_exports is exports
    assert not replace(on_gpu, gdn_prefill="triton").prefill_exports
    assert not replace(on_gpu, capability=None, platform="cpu").prefill_exports
