"""`"quantization"` in the speculative config: vLLM quantises a plain draft while it loads it."""

from __future__ import annotations

import re

import pytest
import torch

from tests.support.described import changed, problems, tiny_config, without
from tests.support.drafter import build
from tests.support.drafting import (
    difference,
    load,
    make_probe,
    module_logits,
    reference_logits,
    resolve_draft,
)
from tests.support.drafts import inspect, valid_draft, write
from tests.support.engine import ROOT
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.memory.device import Device, LoadedKernels
from vllm_eagle_ext.start.rules import weights
from vllm_eagle_ext.start.rules.weights import (
    WITHOUT_CPU_KERNEL,
    draft_can_be_quantised,
    quantisation_has_layers,
)

# Weights and activations have eight bits, of which three are the mantissa's. By the order in which a CPU
# adds, up to 0.296 (AVX-512 BF16) or 0.303 (AVX-512, AVX2); a draft of another seed: 3.7 and more.
BOUND = 0.35


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """Field and whole text of what both rules say of a quantisation that is asked for."""
    case = inspect(valid_draft("native"), tmp_path / "inspected").case

    def judge(asked, platform="cpu"):
        monkeypatch.setattr(weights, "device_of", lambda _: Device(platform=platform))
        monkeypatch.setattr(weights, "loaded_kernels", LoadedKernels)  # whose answers are not kept
        config = changed(tiny_config(), speculative_config__quantization=asked)
        rules = (draft_can_be_quantised, quantisation_has_layers)
        return [str(problem) for rule in rules for problem in problems(rule, config, case)]

    return judge


@pytest.mark.parametrize("family", ["native", "gated", "mla", "qwen3", "dflash"])
def test_fp8_per_channel(family, tmp_path):
    drafter, layer_ids, path, probe = load(tmp_path, valid_draft(family), online="fp8_per_channel")
    layer = drafter.model.layers[0].mlp
    assert layer.down_proj.weight.dtype == drafter.model.fc.weight.dtype == torch.float8_e4m3fn
    mine = module_logits(drafter, family, layer_ids, probe)
    apart = difference(mine, reference_logits(path, family, layer_ids, probe))
    print(f"\n{family}: {apart:.3f}")
    assert 1e-3 < apart < BOUND


def test_a_tensor_that_is_missing_is_still_seen(tmp_path):
    draft = valid_draft("native")
    config, path = resolve_draft(tmp_path, draft, online="fp8_per_channel")
    del draft.tensors["midlayer.mlp.up_proj.weight"]
    write(draft, path)
    with pytest.raises(Exception, match="up_proj"):
        build(config, path, torch.bfloat16, make_probe().embed_tokens)


@pytest.mark.parametrize("asked", WITHOUT_CPU_KERNEL)
def test_what_a_cpu_cannot_quantise_is_refused(asked, tmp_path):
    with pytest.raises(SpeculativeConfigError, match="fp8_per_channel.*leave it out") as refused:
        resolve_draft(tmp_path, valid_draft("native"), online=asked)
    (page,) = re.findall(r"docs/\w+\.md", str(refused.value))
    assert "\n## Online\n" in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("asked", WITHOUT_CPU_KERNEL)
def test_vllm_lacks_these_kernels_on_a_cpu(asked, monkeypatch, tmp_path):
    """The reason of the refusal: it may go when this no longer raises."""
    expected = pytest.raises((RuntimeError, ValueError), match="static_scaled_fp8_quant|find a kernel")
    without(draft_can_be_quantised, monkeypatch)
    with expected:
        load(tmp_path, valid_draft("native"), online=asked)


@pytest.mark.parametrize("asked", ["int8_per_channel_weight_only", "nvfp4_per_token"])
def test_what_quantises_experts_alone_is_warned_of(asked, vllm_log, tmp_path):
    drafter, *_ = load(tmp_path, valid_draft("native"), online=asked)
    assert drafter.model.layers[0].mlp.down_proj.weight.dtype == torch.bfloat16
    assert vllm_log.containing("quantises only experts")


@pytest.mark.parametrize("asked", [None, "fp8_per_channel", {}])
def test_what_passes(asked, judged):
    assert not judged(asked)


def test_blocks_need_amx_on_a_cpu(judged, monkeypatch, tmp_path):
    """As vLLM's kernel does, which is asked here once the refusal is out of the way."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert not judged("fp8_per_block")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    (said,) = judged("fp8_per_block")
    assert re.search("fp8_per_block.*with AMX.*leave it out", said)
    without(draft_can_be_quantised, monkeypatch)
    with pytest.raises(ValueError, match="AMX"):
        load(tmp_path, valid_draft("native"), online="fp8_per_block")


@pytest.mark.parametrize("platform", ["cuda", "cpu"])
def test_a_scheme_with_arguments_is_refused(platform, judged):
    (said,) = judged("online", platform=platform)
    assert re.search("online.*name of one scheme", said)


def test_on_a_gpu_all_pass(judged):
    for asked in WITHOUT_CPU_KERNEL:
        assert not judged(asked, platform="cuda")
