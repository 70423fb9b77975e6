"""vLLM's convolution on CPUs without tiles, whose rows go to a C++ kernel that reads them one by one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from tests.support.engine import has_gpu
from tests.unit.replay.cases import FP32, cpu_case, of_size

if has_gpu():
    pytest.skip("vLLM's CPU kernels", allow_module_level=True)

from vllm.lora.layers.base import BaseLayerWithLoRA
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata

from vllm_eagle_ext.replay import on_cpu
from vllm_eagle_ext.replay.ops import cpu

WIDTH = 4


@pytest.mark.parametrize("counts", [[8], [8, 8], [5], [8, 3, 1]], ids=str)
def test_rows_of_the_convolution(monkeypatch, counts):
    """In memory as the kernel wants them, also of a single request; each request's by itself."""
    monkeypatch.setattr(on_cpu, "_has_native", lambda _: False)
    T, dim = 8, 2 * FP32.H * FP32.DK + FP32.HV * FP32.DV
    made = cpu_case(of_size(FP32, T), counts)
    batch = cpu.prepare(made.batch, T)
    conv1d = SimpleNamespace(weight=torch.randn(dim, 1, WIDTH), bias=None)
    layer = SimpleNamespace(conv1d=conv1d, activation="silu")
    conv = torch.randn(1 + len(made.cache.state), dim, WIDTH - 1 + T - 1)
    before, x = conv.clone(), torch.randn(sum(counts), dim).to(made.rows.query.dtype)
    cache = made.cache._replace(conv=conv)
    rows = on_cpu.CpuOps().convolve(layer, x, cache, SimpleNamespace(batch=batch))
    assert rows.stride(-1) == 1
    for request, row in enumerate(rows.split(counts)):
        history = before[int(batch.host_tables[0].state_blocks[request]), :, : WIDTH - 1]
        inputs = torch.cat([history, x.split(counts)[request].T.float()], dim=-1)
        expected = F.silu(F.conv1d(inputs[None], conv1d.weight, groups=dim))[0].T
        assert torch.allclose(row.float(), expected, atol=1e-5, rtol=1e-2)
    sizes = [FP32.H * FP32.DK] * 2 + [FP32.HV * FP32.DV]
    query, key, value = rows.split(sizes, dim=-1)
    heads = [(query, FP32.DK), (key, FP32.DK), (value, FP32.DV)]
    parts = [part.unflatten(-1, (-1, size)) for part, size in heads]  # views of the rows
    qkv = dict(zip(("query", "key", "value"), parts, strict=True))
    out = made.out()
    cpu.verify(made.rows._replace(**qkv), made.gating, cache, batch, out)
    assert out[: sum(counts)].abs().sum() > 0


def test_a_layer_without_drafts_has_the_first_columns_of_its_cache():
    """Until another cache is bound, as after a sleep of the engine."""
    conv, state = torch.randn(5, WIDTH - 1 + 7, 6), torch.randn(5, 2, 3, 4)
    layer = torch.nn.Module()
    layer.conv1d = torch.nn.Conv1d(6, 6, WIDTH, groups=6)
    layer.kv_cache = conv, state, torch.empty(5)
    view = on_cpu._narrow_view(layer)
    assert on_cpu._narrow_view(layer) is view
    view.kv_cache[0][2] = 1.0
    assert (conv[2, : WIDTH - 1] == 1.0).all()
    assert (conv[2, WIDTH - 1 :] != 1.0).all()
    assert view.kv_cache[1] is state
    assert view.conv1d is layer.conv1d
    assert layer.kv_cache[0] is conv
    layer.kv_cache = conv.clone(), state.clone(), torch.empty(5)
    renewed = on_cpu._narrow_view(layer)
    assert renewed.kv_cache[1] is layer.kv_cache[1]
    assert "narrow_view" not in renewed.__dict__, "the older cache would live on in it"


def test_an_adapted_convolution_follows_a_reload():
    """The wrapper's plain weights are those of the layer below, as vLLM packed it last."""
    wrapper = BaseLayerWithLoRA()
    wrapper.base_layer = torch.nn.Module()
    layer = SimpleNamespace(conv1d=wrapper)
    on_cpu._show_plain_weights(layer)
    assert getattr(wrapper, on_cpu._PLAIN_WEIGHTS, None) is None
    for _ in range(2):
        plain = torch.randn(64, WIDTH)
        setattr(wrapper.base_layer, on_cpu._PLAIN_WEIGHTS, plain)
        on_cpu._show_plain_weights(layer)
        assert getattr(wrapper, on_cpu._PLAIN_WEIGHTS) is plain


def test_the_state_block_of_one_request_stands_by_itself(monkeypatch):
    """A column of one row is contiguous to PyTorch, whatever its stride, which vLLM's kernels read."""
    table = torch.arange(12, dtype=torch.int32).view(1, 12)
    metadata = SimpleNamespace(num_actual_tokens=1, non_spec_state_indices_tensor=table[:, 3])
    assert table[:, 3].is_contiguous()
    context = SimpleNamespace(attn_metadata={"a layer": metadata})
    monkeypatch.setattr(on_cpu, "get_forward_context", lambda: context)
    meta = on_cpu._with_readable_blocks(SimpleNamespace(prefix="a layer"))
    assert meta is metadata
    blocks = metadata.non_spec_state_indices_tensor
    assert blocks.tolist() == [3]
    assert blocks.stride() == (1,)


class OneLayer:
    """A gated delta net without projections: what vLLM's CPU code reads of one, with packed weights."""

    H, HV, DK, DV, COLUMNS = 2, 4, 32, 32, WIDTH - 1 + 7
    prefix, tp_size, activation = "a layer", 1, "silu"

    def __init__(self, blocks: int) -> None:
        torch.manual_seed(3)
        self.key_dim, self.value_dim = self.H * self.DK, self.HV * self.DV
        self.head_k_dim, self.head_v_dim = self.DK, self.DV
        dim = 2 * self.key_dim + self.value_dim
        self.conv1d = torch.nn.Module()
        weight = torch.randn(dim, 1, WIDTH, dtype=torch.bfloat16) / 2
        self.conv1d.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.conv1d.bias = None
        dispatch_cpu_unquantized_gemm(self.conv1d, remove_weight=False)
        self.A_log, self.dt_bias = torch.rand(self.HV), torch.rand(self.HV, dtype=torch.bfloat16)
        conv = torch.randn(blocks, self.COLUMNS, dim, dtype=torch.bfloat16)
        state = torch.randn(blocks, self.HV, self.DV, self.DK)
        self.kv_cache = conv, state, torch.empty(blocks)

    def rearrange_mixed_qkv(self, mixed_qkv):
        return QwenGatedDeltaNetAttention.rearrange_mixed_qkv(self, mixed_qkv)

    def decode(self, forward, table, steps, monkeypatch):
        """Decode rows of random inputs, a few steps; outputs [steps, R, HV, DV] and the caches."""
        rows, outputs = len(table), []
        for step in range(steps):
            torch.manual_seed(50 + step)
            x = torch.randn(rows, self.conv1d._cpu_unpacked_conv_weight.shape[0], dtype=torch.bfloat16)
            b, a = torch.randn(2, rows, self.HV, dtype=torch.bfloat16)
            metadata = GDNAttentionMetadata(
                num_prefills=0, num_prefill_tokens=0, num_decodes=rows, num_decode_tokens=rows,
                num_spec_decodes=0, num_spec_decode_tokens=0, num_actual_tokens=rows,
                non_spec_query_start_loc=torch.arange(rows + 1, dtype=torch.int32),
                non_spec_state_indices_tensor=table[:, 0],
            )  # fmt: skip
            context = SimpleNamespace(
                attn_metadata={self.prefix: metadata}, no_compile_layers={self.prefix: self}
            )
            for module in (on_cpu, on_cpu.stock):
                monkeypatch.setattr(module, "get_forward_context", lambda context=context: context)
            out = torch.zeros(rows, self.HV, self.DV, dtype=torch.bfloat16)
            forward(self, x, b, a, out)
            outputs.append(out)
        return torch.stack(outputs), *self.kv_cache[:2]


def wide(layer, x, b, a, out):
    """vLLM's own way with a wide conv state, which needs a block table without strides."""
    metadata = on_cpu.get_forward_context().attn_metadata[layer.prefix]
    blocks = metadata.non_spec_state_indices_tensor.clone(memory_format=torch.contiguous_format)
    metadata.non_spec_state_indices_tensor = blocks
    on_cpu.stock.cpu_gdn_attention_core(x, b, a, out, layer.prefix)


@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="vLLM packs no convolution here")
@pytest.mark.parametrize("requests", [1, 2, 5])
def test_the_packed_convolution_steps_states_as_the_wide_one(monkeypatch, requests):
    """Through six steps, more than the convolution is wide; columns behind its own are not touched."""
    table = 1 + torch.randperm(7)[:requests].int().unsqueeze(1).repeat(1, 9)
    expected = OneLayer(8).decode(wide, table, 6, monkeypatch)
    layer = OneLayer(8)
    before = layer.kv_cache[0].clone()
    mine = layer.decode(on_cpu.CpuOps().forward_committed, table, 6, monkeypatch)
    assert torch.equal(mine[1], expected[1])
    assert torch.equal(mine[1][:, WIDTH - 1 :], before[:, WIDTH - 1 :])
    for outputs in (0, 2):
        assert torch.allclose(mine[outputs].float(), expected[outputs].float(), atol=2e-2, rtol=2e-2)
    assert mine[0].abs().sum() > 0
