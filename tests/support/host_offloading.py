"""vLLM's `OffloadingConnector` on a CPU: its own scheduler, policy and metadata, and a worker that
copies blocks with torch where vLLM's needs CUDA streams. Named in `kv_connector_extra_config`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class HostCopies(OffloadingWorker):
    """One chunk of the host per block of a group; a transfer is over when it returns."""

    loads_states = True  # a test that must notice turns it off

    def __init__(self, kv_caches: CanonicalKVCaches, num_chunks: int, recurrent: list[bool]) -> None:
        self._groups = kv_caches.group_data_refs
        self._recurrent = recurrent
        self._blocks = [entry.tensor.view(torch.int8) for entry in kv_caches.tensors]
        # [num_chunks, page_size_bytes] each
        self._chunks = [
            torch.zeros(num_chunks, entry.page_size_bytes, dtype=torch.int8)
            for entry in kv_caches.tensors
        ]
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: Any) -> bool:
        return self._copy(job_id, self._blocks, src_spec, self._chunks, dst_spec, src_spec)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: GPULoadStoreSpec) -> bool:
        return self._copy(job_id, self._chunks, src_spec, self._blocks, dst_spec, dst_spec)

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: Collection[int]) -> None:
        """Nothing is under way."""

    def _copy(
        self,
        job_id: int,
        sources: list[torch.Tensor],
        src: BlockIDsLoadStoreSpec,
        targets: list[torch.Tensor],
        dst: BlockIDsLoadStoreSpec,
        device: GPULoadStoreSpec,
    ) -> bool:
        assert len(src.block_ids) == len(dst.block_ids) == sum(device.group_sizes)
        start = copied = 0
        for refs, size, recurrent in zip(self._groups, device.group_sizes, self._recurrent, strict=True):
            part = slice(start, start + size)
            start += size
            if recurrent and targets is self._blocks and not self.loads_states:
                continue
            pairs = list(zip(src.block_ids[part].tolist(), dst.block_ids[part].tolist(), strict=True))
            for ref in refs:
                width = ref.page_size_bytes
                for source, target in pairs:
                    targets[ref.tensor_idx][target, :width] = sources[ref.tensor_idx][source, :width]
                copied += width * len(pairs)
        self._finished.append(TransferResult(job_id, True, copied, 0.0))
        return True


class HostOffloading(CPUOffloadingSpec):
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        assert self.blocks_per_chunk == 1
        recurrent = ["linear_attn" in group.layer_names[0] for group in self.config.groups]
        assert any(recurrent)
        return HostCopies(kv_caches, self.num_chunks, recurrent)


def offloading(gib: float, **extra: Any) -> dict[str, Any]:
    """`kv_transfer_config` of an engine that offloads to so much of the host's memory."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": HostOffloading.__name__,
            "spec_module_path": __name__,
            "cpu_bytes_to_use": int(gib * 2**30),
            **extra,
        },
    }
