"""What a commit reads of weights that vLLM offloads: every layer's own gates, on the layer's device.

vLLM's prefetching and its host copies run on tensors of a CPU, with copies made at once. Its classes for
a whole model want a GPU's streams.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.func import functional_call

from tests.support.engine import has_gpu
from tests.unit.replay.cases import Shape, case, rows

if has_gpu():
    pytest.skip("vLLM's offloading on a CPU's tensors", allow_module_level=True)

from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.offloader import prefetch, uva
from vllm.model_executor.offloader.base import set_offloader

from vllm_eagle_ext.errors import UnsupportedTargetError
from vllm_eagle_ext.replay import layer as layer_module
from vllm_eagle_ext.replay import targets
from vllm_eagle_ext.replay.cache_groups import GroupsCommit
from vllm_eagle_ext.replay.layer import ReplayGatedDeltaNetAttention
from vllm_eagle_ext.replay.metadata import ReplayMetadata
from vllm_eagle_ext.replay.ops import reference

SHAPE = Shape(T=4, HV=2, DK=8, DV=8)
LAYERS, ROWS, SAMPLED = 4, [4, 4], [3, 2]
NAMES = ("A_log", "dt_bias")
PREFETCH = object.__new__(prefetch.PrefetchOffloader)  # whose constructor wants a GPU's stream
UVA = uva.UVAOffloader(1 << 30)


class Prefetching:
    """vLLM's slots: the layers of one share a buffer, filled for the next of them after a forward."""

    def __init__(self, layers: list[torch.nn.Module], step: int) -> None:
        self.step = step
        self.params = [
            {name: prefetch._CpuParamOffloader(layer, name) for name in NAMES} for layer in layers
        ]
        infos = [
            prefetch.ParamInfo(name, *self._layout(param))
            for params in self.params
            for name, param in params.items()
        ]
        pool = prefetch.StaticBufferPool(infos, step, torch.device("cpu"))
        for index, params in enumerate(self.params):
            for name, param in params.items():
                param.assign_static_buffer(pool.get_buffer(name, *self._layout(param), index % step))
        for index in range(step):
            self._load(index)

    @staticmethod
    def _layout(param: prefetch._CpuParamOffloader) -> tuple:
        stored = param._cpu_storage
        return tuple(stored.shape), tuple(stored.stride()), stored.dtype

    def _load(self, index: int) -> None:
        for param in self.params[index].values():
            param._gpu_buffer.copy_(param._cpu_storage)

    def after(self, index: int) -> None:
        self._load(prefetch._get_next_prefetch_index(index, self.step, len(self.params)))


class Steps:
    """Layers without projections, and a step of one group of them."""

    def __init__(self, monkeypatch, offloader=None, device: str = "cpu") -> None:
        self.cases = [case(SHAPE, ROWS, seed=7 * index) for index in range(LAYERS)]
        set_offloader(offloader)
        try:
            with torch.device(device):
                self.layers = [self._layer(index, made) for index, made in enumerate(self.cases)]
        finally:
            set_offloader(None)
        ops = SimpleNamespace(convolve=lambda layer, x, cache, step: x, warm_up=lambda *_: None)
        batch = self.cases[0].batch
        self.step = SimpleNamespace(
            rows=None, num_rows=sum(ROWS), num_requests=len(ROWS), batch=batch,
            places=SimpleNamespace(indices=None),
        )  # fmt: skip
        groups = SimpleNamespace(
            layer_names=[[layer.prefix for layer in self.layers]],
            batch=lambda step: step.batch._replace(state_blocks=step.batch.state_blocks[None]),
            align=lambda step: None,
            padding_batch=lambda *_: None,
            ops=ops,
        )
        metadata = ReplayMetadata.__new__(ReplayMetadata)
        metadata.step = self.step
        known = {layer.prefix: metadata for layer in self.layers}
        monkeypatch.setattr(layer_module, "replay_ops", lambda: ops)
        monkeypatch.setattr(
            layer_module, "get_forward_context", lambda: SimpleNamespace(attn_metadata=known)
        )
        config = SimpleNamespace(
            compilation_config=SimpleNamespace(
                static_forward_context={layer.prefix: layer for layer in self.layers}
            ),
            scheduler_config=SimpleNamespace(max_num_seqs=len(ROWS)),
        )
        self.commit = GroupsCommit(groups, config)

    @staticmethod
    def _layer(index: int, made) -> ReplayGatedDeltaNetAttention:
        layer = QwenGatedDeltaNetAttention.__new__(QwenGatedDeltaNetAttention)
        torch.nn.Module.__init__(layer)
        layer.prefix, layer.tp_size, layer.conv_kernel_size = f"layers.{index}", 1, SHAPE.W
        layer.head_k_dim, layer.head_v_dim = SHAPE.DK, SHAPE.DV
        layer.key_dim, layer.value_dim = SHAPE.H * SHAPE.DK, SHAPE.HV * SHAPE.DV
        for name, values in zip(NAMES, made.gating, strict=True):
            layer.register_parameter(name, torch.nn.Parameter(values.clone(), requires_grad=False))
        ReplayGatedDeltaNetAttention.adopt(layer, reference)
        conv = made.cache.conv.transpose(-1, -2)
        layer.kv_cache = conv, made.cache.state, made.cache.records
        layer.forward = partial(layer._forward_core)
        return layer

    def run(self, forward=None, after=None) -> list[torch.Tensor]:
        """All layers' verify, then the commit of all; what they committed."""
        for index, layer in enumerate(self.layers):
            inputs = rows(SHAPE, sum(ROWS), seed=index)
            mixed = torch.cat([part.flatten(1) for part in inputs[:3]], dim=1)
            out = torch.zeros_like(inputs.value)
            (forward or (lambda layer, *given: layer.forward(*given)))(
                layer, mixed, inputs.b, inputs.a, out
            )
            if after is not None:
                after(index)
        self.commit(self.step, torch.tensor(SAMPLED, dtype=torch.int32))
        return [made.cache.state[1:].clone() for made in self.cases]


def assert_same(states: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for index, pair in enumerate(zip(states, expected, strict=True)):
        assert torch.equal(*pair), f"states of layer {index}"


@pytest.mark.parametrize("step", [1, 2])
def test_prefetched_layers_commit_with_their_own_gates(monkeypatch, step):
    """By the commit, a slot's buffer holds the gates of the layer that was prefetched last."""
    expected = Steps(monkeypatch).run()
    steps = Steps(monkeypatch, PREFETCH)
    prefetching = Prefetching(steps.layers, step)
    assert len({layer.A_log.data_ptr() for layer in steps.layers}) == step
    assert_same(steps.run(after=prefetching.after), expected)


def test_gates_on_the_host_are_kept_on_the_device(monkeypatch):
    """`VLLM_WEIGHT_OFFLOADING_DISABLE_UVA`: vLLM's forward runs on copies of what lies on the host."""
    expected = Steps(monkeypatch).run()
    steps = Steps(monkeypatch, UVA)

    def forward(layer, *given):
        on_device = {name: value.clone() for name, value in layer.state_dict().items()}
        functional_call(layer, on_device, args=given, tie_weights=False)

    def host_is_gone(index):  # a kernel of the device could not read it
        for name in NAMES:
            getattr(steps.layers[index], name).data.fill_(float("nan"))

    assert_same(steps.run(forward, host_is_gone), expected)
    elsewhere = Steps(monkeypatch, UVA, device="meta")  # in place of a GPU: parameters are on the host
    _, _, plan = elsewhere.commit._bind(elsewhere.step, torch.tensor(SAMPLED))
    assert elsewhere.layers[0].A_log.device.type == "cpu"
    assert plan.final.device.type == "meta"


def test_gates_that_stay_in_place_are_right(monkeypatch):
    """UVA: a view of host memory, at the address of the start. An update there counts at once."""
    steps, plain = Steps(monkeypatch, UVA), Steps(monkeypatch)
    for each in (steps, plain):
        for layer in each.layers:
            layer.A_log.data.mul_(0.5)
    assert_same(steps.run(), plain.run())


def test_without_offloading_nothing_is_copied(monkeypatch):
    for layer in Steps(monkeypatch).layers:
        assert layer.kept_gating is None
        assert layer.gating.A_log is layer.A_log


def test_an_update_that_prefetching_would_lose_is_refused(monkeypatch):
    """The next prefetch of a layer copies the start's weights over those of an update."""

    class Target:
        def load_weights(self, weights):
            return dict(weights)

    class Replaying(targets._Replay, Target):
        def __init__(self):
            pass

    for offloader in (None, UVA, PREFETCH):
        monkeypatch.setattr(targets, "get_offloader", lambda now=offloader: now)
        monkeypatch.setattr(PREFETCH, "buffer_pool", None, raising=False)
        assert Replaying().load_weights([("a", 1)]) == {"a": 1}
    monkeypatch.setattr(PREFETCH, "buffer_pool", object())
    with pytest.raises(UnsupportedTargetError, match="--cpu-offload-gb in place of"):
        Replaying().load_weights([("a", 1)])
