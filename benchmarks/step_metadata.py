# SPDX-License-Identifier: Apache-2.0
"""A step of vLLM's V2 runner without an engine: the metadata of all KV-cache groups, and the commit.

What runs is vLLM's `build_attn_metadata`, its builder or this package's, and `RecoverSSMState`. What a
device would add is counted, not run: each torch operation on the step's tensors that is no view and no
allocation, and each launch of a Triton kernel. Builders are constructed as on CUDA, with other buffers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median
from time import process_time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.worker.gpu import attn_utils
from vllm.v1.worker.gpu.model_states import mamba_hybrid, recoverssm
from vllm.v1.worker.utils import AttentionGroup

from benchmarks.launch_counts import Launches, launched, triton_launches
from vllm_eagle_ext.memory.state_blocks import record_width
from vllm_eagle_ext.replay import metadata
from vllm_eagle_ext.replay.layer import ReplayBackend
from vllm_eagle_ext.replay.metadata import ReplayMetadataBuilder
from vllm_eagle_ext.replay.on_gpu import GpuOps
from vllm_eagle_ext.replay.ops import triton
from vllm_eagle_ext.replay.ops.types import Gating, StateCache


@dataclass(frozen=True)
class Delta:
    """A gated delta net's sizes, and how many there are."""

    layers: int
    key_heads: int
    value_heads: int
    width: int = 128  # of keys and values
    window: int = 4  # of the convolution


@dataclass(frozen=True)
class Setting:
    delta: Delta
    groups: int
    k: int
    requests: int
    mode: str = "align"  # vLLM's mamba_cache_mode; "none" without prefix caching
    block: int = 960
    graphs: bool = True
    prompts: int = 0  # of the requests, in a mixed batch
    device: str = "meta"
    kernels: Any = triton


class Runner:
    """The groups of gated delta nets in vLLM's V2 runner."""

    def __init__(self, setting: Setting, *, replays: bool) -> None:
        self.setting, self.replays = setting, replays
        self.config = _config(setting)
        names = [f"layers.{i}" for i in range(setting.delta.layers)]
        size = -(-setting.delta.layers // setting.groups)
        parts = [names[i : i + size] for i in range(0, len(names), size)]
        assert len(parts) == setting.groups
        if replays:
            self.config.compilation_config.static_forward_context.update(_layers(setting, names))
        self.attn_groups = [[self._group(i, part)] for i, part in enumerate(parts)]
        columns = 64 if setting.mode == "align" else 1 + (0 if replays else setting.k)
        self.tables = tuple(self._device(setting.requests, columns) for _ in parts)
        self.aligned = self._device(len(parts), setting.requests, 1 if replays else 1 + setting.k)
        self.recovery = recoverssm.RecoverSSMState()
        self.take(setting)
        self.cache = SimpleNamespace(kv_cache_groups=parts)

    def take(self, setting: Setting) -> None:
        """A batch of at most as many requests as the first one's."""
        self.setting, self.batch = setting, _batch(setting)
        self.ones = self._device(setting.requests)
        self.requests = self.ones.long()
        self.starts, self.lengths = (
            self.batch[name].to(setting.device) for name in ("starts", "lengths")
        )

    def prepare(self) -> Any:
        """The metadata of a step, as `MambaHybridModelState.prepare_attn` has it built."""
        setting, batch = self.setting, self.batch
        if setting.mode == "align":
            launched("get_aligned_state_indices_multi_group_kernel")
            aligned = self.aligned[:, : setting.requests]
            for indices, (group,) in zip(aligned, self.attn_groups, strict=True):
                if hasattr(group.metadata_builders[0], "mamba_aligned_state_indices"):
                    group.metadata_builders[0].mamba_aligned_state_indices = indices
        specific = mamba_hybrid.MambaHybridAttnMetadata(
            is_prefilling=batch["is_prefilling"],
            num_accepted_tokens=self.ones,
            num_decode_draft_tokens_cpu=batch["drafts"],
        )
        return attn_utils.build_attn_metadata(
            attn_groups=self.attn_groups,
            num_reqs=setting.requests,
            num_tokens=int(batch["starts"][-1]),
            query_start_loc_gpu=self.starts,
            query_start_loc_cpu=batch["starts"],
            max_query_len=int(batch["starts"].diff().max()),
            seq_lens=self.lengths,
            max_seq_len=int(batch["lengths"].max()),
            block_tables=[table[: setting.requests] for table in self.tables],
            slot_mappings=self.aligned[:, :, 0],
            kv_cache_config=self.cache,
            seq_lens_cpu_upper_bound=batch["lengths"],
            model_specific_attn_metadata=specific,
        )

    def commit(self, built: Any) -> None:
        """What follows sampling, as `MambaHybridModelState.postprocess_state` does it."""
        sampled, indices = self.ones, self.requests
        mamba_hybrid._scatter_num_accepted_kernel[(1,)](indices, sampled, sampled)
        self.recovery.record_step(built, self.attn_groups, for_capture=False)
        self.recovery.commit_step(sampled, indices, state_indices=sampled, num_accepted_tokens=sampled)

    def _device(self, *size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.int32, device=self.setting.device)

    def _group(self, number: int, names: list[str]) -> AttentionGroup:
        spec = _spec(self.setting, replays=self.replays)
        group = AttentionGroup(ReplayBackend, names, spec, number)
        group.metadata_builders = [_builder(self.setting, self.config, names, spec, self.replays)]
        return group


def _config(setting: Setting) -> Any:
    """What the constructors read of vLLM's, as its defaults are on CUDA."""
    graphs = SimpleNamespace(has_full_cudagraphs=lambda: setting.graphs)
    return SimpleNamespace(
        additional_config={},
        cache_config=SimpleNamespace(mamba_cache_mode=setting.mode, num_gpu_blocks=None),
        compilation_config=SimpleNamespace(
            static_forward_context={}, cudagraph_mode=graphs, max_cudagraph_capture_size=512
        ),
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace()),
        num_speculative_tokens=setting.k,
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, rank=0),
        scheduler_config=SimpleNamespace(max_num_seqs=setting.requests),
        speculative_config=SimpleNamespace(
            num_speculative_tokens=setting.k, parallel_drafting=False, use_eagle_block_drop=lambda: False
        ),
        use_v2_model_runner=True,
    )


def _spec(setting: Setting, *, replays: bool) -> MambaSpec:
    delta, rows = setting.delta, setting.k + 1
    channels = delta.width * (2 * delta.key_heads + delta.value_heads)
    shapes = [
        (delta.window - 1 + setting.k, channels),
        (delta.value_heads, delta.width, delta.width),
        (rows, record_width(delta.key_heads, delta.width, delta.value_heads, delta.width)),
    ]
    dtypes = [torch.bfloat16, torch.float32, torch.bfloat16]
    parts = 3 if replays else 2
    return MambaSpec(
        shapes=tuple(shapes[:parts]), dtypes=tuple(dtypes[:parts]), block_size=setting.block,
        mamba_cache_mode=setting.mode, num_speculative_blocks=0 if replays else setting.k,
    )  # fmt: skip


def _layers(setting: Setting, names: list[str]) -> dict[str, Any]:
    """What a commit reads of the layers."""
    spec = _spec(setting, replays=True)
    parts = [
        torch.empty((2, *shape), dtype=dtype, device=setting.device)
        for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
    ]
    cache = StateCache(parts[0].transpose(1, 2), *parts[1:])
    heads = torch.empty(setting.delta.value_heads, device=setting.device)
    layer = SimpleNamespace(
        state_cache=cache, gating=Gating(heads, heads), conv_kernel_size=setting.delta.window,
        replay_kernels=setting.kernels,
    )  # fmt: skip
    return dict.fromkeys(names, layer)


class _InPlaceOfCuda(TorchFunctionMode):
    """Buffers that are asked for on a GPU."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = torch.device(device)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = self.device
        return func(*args, **kwargs)


def _builder(setting: Setting, config: Any, names: list[str], spec: MambaSpec, replays: bool) -> Any:
    kind: Any = ReplayMetadataBuilder if replays else GDNAttentionMetadataBuilder
    with _InPlaceOfCuda(setting.device), mock.patch.object(metadata, "replay_ops", GpuOps):
        made = kind(spec, names, config, torch.device("cuda"))
    made.device = torch.device(setting.device)
    return made


def _batch(setting: Setting) -> dict[str, torch.Tensor]:
    """Verify rows of all requests but the last ones, which are prompts of 64 tokens."""
    is_prompt = np.arange(setting.requests) >= setting.requests - setting.prompts
    rows = np.where(is_prompt, 64, setting.k + 1)
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    lengths = (rows + np.where(is_prompt, 0, 4000)).astype(np.int32)
    drafts = np.where(is_prompt, -1, setting.k).astype(np.int32)
    batch = {"starts": starts, "lengths": lengths, "drafts": drafts, "is_prefilling": is_prompt}
    return {name: torch.from_numpy(values) for name, values in batch.items()}


def launches(setting: Setting, *, replays: bool) -> Counter[str]:
    """Launches of a step, once buffers are made and block tables known."""
    runner = Runner(setting, replays=replays)
    for _ in range(2):
        with Launches() as mode, triton_launches(mode.tally):
            runner.commit(runner.prepare())
    return mode.tally


def host_times(setting: Setting, repeats: int) -> dict[str, float]:
    """Median seconds of the process for a step's metadata, by turns, and for replay's commit. Tensors
    are a CPU's, Triton's launches cost nothing."""
    runners = {name: Runner(setting, replays=name == "replay") for name in ("per_token", "replay")}
    taken: dict[str, list[float]] = {"per_token": [], "replay": [], "replay's commit": []}
    with triton_launches(Counter()):
        for _ in range(repeats):
            for name, runner in runners.items():
                begin = process_time()
                built = runner.prepare()
                taken[name].append(process_time() - begin)
                begin = process_time()
                runner.commit(built)
                if name == "replay":
                    taken["replay's commit"].append(process_time() - begin)
    return {name: median(seconds) for name, seconds in taken.items()}
