"""The kernel variants that batches ask for are among those that the first commit compiles. Triton's key
of a variant is computed here from what it is given, the kernels do not run."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from tests.support.engine import has_gpu

if has_gpu():
    pytest.skip("records what a GPU would compile, without one", allow_module_level=True)

from triton.runtime.jit import JITFunction
from vllm.v1.worker.gpu.model_states import mamba_hybrid, recoverssm

from benchmarks.step_launches import QWEN_27B
from benchmarks.step_metadata import Runner, Setting
from tests.unit.replay.cases import Shape, case
from vllm_eagle_ext.replay import layer as layer_module
from vllm_eagle_ext.replay.on_gpu import GpuOps
from vllm_eagle_ext.replay.ops import triton as ops
from vllm_eagle_ext.replay.ops import triton_chunked

ALIGNMENT = 16
VLLMS = "_postprocess_recoverssm_align_kernel"


def of_argument(value, *, specializes: bool, sees_alignment: bool):
    """Triton's rules: integers are told apart by being 1 and by 16 dividing them, pointers by theirs."""
    if isinstance(value, torch.Tensor):
        return value.dtype, sees_alignment and value.data_ptr() % ALIGNMENT == 0
    if isinstance(value, int) and specializes:
        return value == 1, value % ALIGNMENT == 0
    return type(value)


@contextmanager
def variants():
    """Fills a counter with the variants of kernels that are asked for."""
    calls = Counter()

    def run(self, *args, grid, warmup, **kwargs):
        key = [self.fn.__name__]
        given = dict(zip(self.arg_names, args, strict=False)) | kwargs
        for param in self.params:
            value = given[param.name]
            key.append(
                value
                if param.is_constexpr
                else of_argument(
                    value,
                    specializes=not param.do_not_specialize,
                    sees_alignment=not param.do_not_specialize_on_alignment,
                )
            )
        calls[tuple(key)] += 1

    class Align:
        """vLLM's kernel, which is no JIT function without a device; by its heuristics and constants."""

        def __getitem__(self, grid):
            def launch(*args, **kwargs):
                seen = [of_argument(arg, specializes=True, sees_alignment=True) for arg in args]
                calls[(VLLMS, *seen, *kwargs.items())] += 1

            return launch

    with (
        mock.patch.object(JITFunction, "run", run),
        mock.patch.object(recoverssm, VLLMS, Align()),
        mock.patch.object(mamba_hybrid, "_scatter_num_accepted_kernel", mock.MagicMock()),
    ):
        yield calls


def step(runner: Runner, setting: Setting) -> None:
    runner.take(setting)
    runner.commit(runner.prepare())


@pytest.mark.promise("the first mixed batch compiles no kernel of the commit")
@pytest.mark.parametrize("mode", ["align", "none"])
@pytest.mark.parametrize("groups", [3, 48])
def test_batches_compile_nothing_behind_the_first_commit(mode, groups):
    setting = Setting(QWEN_27B, groups, k=15, requests=13, mode=mode, device="cpu")
    runner = Runner(setting, replays=True)
    with variants() as warmed:
        step(runner, setting)
    with variants() as later:
        for requests, prompts in ((13, 0), (1, 0), (12, 3), (9, 8), (8, 1), (2, 1)):
            step(runner, replace(setting, requests=requests, prompts=prompts))
    assert set(later) - set(warmed) == set()
    mapped = {key[0] for key in later if key[0] != "_apply_states"}
    assert {"_plan", "_gather_blocks"} <= mapped
    # The later batches did ask for variants that the first batch would not have.
    with mock.patch.object(GpuOps, "warm_up"), variants() as without:
        step(Runner(setting, replays=True), setting)
    names = {"_plan", "_gather_blocks"} | ({VLLMS} if mode == "align" else set())
    assert {key[0] for key in set(later) - set(without)} == names


LAYER = SimpleNamespace(  # as vLLM's has them, by QWEN_27B
    key_dim=16 * 128, value_dim=48 * 128, head_k_dim=128, head_v_dim=128, tp_size=1,
    replay_kernels=triton_chunked,
)  # fmt: skip


def verify(runner: Runner) -> None:
    """As a layer does: a mixed batch's rows are copies, those of another one parts of a projection."""
    built = runner.prepare()["layers.0"].step
    layer = copy(LAYER)
    parts = runner.config.compilation_config.static_forward_context["layers.0"]
    layer.state_cache, layer.gating = parts.state_cache, parts.gating
    tokens, channels = built.num_rows, 2 * layer.key_dim + layer.value_dim
    x = torch.empty(tokens, channels + layer.value_dim, dtype=torch.bfloat16)[:, :channels]
    b, a = torch.empty(tokens, 2 * 48 + 8, dtype=torch.bfloat16)[:, 8:].chunk(2, dim=1)
    if built.rows is not None:
        x, b, a = x.clone(), b.clone(), a.clone()
    out = torch.empty(tokens, 48, 128, dtype=torch.bfloat16)
    ops = SimpleNamespace(convolve=lambda layer, x, cache, step: x)
    with mock.patch.object(layer_module, "replay_ops", return_value=ops):
        layer_module.ReplayGatedDeltaNetAttention._verify(layer, x, b, a, out, step=built)


@pytest.mark.parametrize(("layers", "commits"), [(48, 1), (2, 2)])
def test_chunked_steps_of_few_and_of_many_requests_are_compiled(layers, commits):
    """A commit's tiles depend on all of its layers, a verify's on those of one."""
    delta = replace(QWEN_27B, layers=layers)
    setting = Setting(delta, 2, k=15, requests=13, mode="align", device="cpu", kernels=triton_chunked)
    runner = Runner(setting, replays=True)
    with variants() as warmed:
        step(runner, setting)
    with variants() as later:
        for requests, prompts in ((1, 0), (2, 0), (12, 0), (13, 0), (2, 1), (12, 4)):
            step(runner, replace(setting, requests=requests, prompts=prompts))
            verify(runner)
    for name, expected in (("_verify", 2), ("_apply_states", commits)):
        asked = [{key for key in calls if key[0] == name} for calls in (warmed, later)]
        assert len(asked[1]) == expected, name
        assert asked[1] <= asked[0], name


@pytest.mark.parametrize("kernels", [ops, triton_chunked], ids=["sequential", "chunked"])
def test_a_mixed_batch_verifies_with_the_same_variant(kernels):
    """Its rows are copies: the gates stand elsewhere, and closer together."""
    made = case(Shape(HV=8, H=4), [4, 2])
    b, a = torch.zeros(6, 17, dtype=torch.bfloat16)[:, 1:].chunk(2, dim=1)
    with variants() as calls:
        for rows in (made.rows._replace(a=a, b=b), made.rows._replace(a=a.clone(), b=b.clone())):
            kernels.verify(rows, made.gating, made.cache, made.batch, made.out())
    assert [count for key, count in calls.items() if key[0] == "_verify"] == [2]
