"""vLLM's `OffloadingConnector` on a CPU: its own scheduler, policy and metadata, and a worker that
copies blocks with torch where vLLM's needs CUDA streams. Named in `kv_connector_extra_config`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from vllm.distributed.kv_transfer import get_kv_transfer_group
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
    # Layers' blocks of watched engines; the latter not as the step before left them, and zeros.
    saved = overwritten = cleared = 0

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
        self._as_computed: dict[int, list[torch.Tensor]] = {}  # per job

    def note(self, job_id: int, src_spec: GPULoadStoreSpec) -> None:
        """Remember the bytes that are to be saved."""
        self._as_computed[job_id] = self._bytes_of(src_spec)

    def _bytes_of(self, spec: GPULoadStoreSpec) -> list[torch.Tensor]:
        """[blocks, bytes] of each layer."""
        start, found = 0, []
        for refs, size in zip(self._groups, spec.group_sizes, strict=True):
            blocks = spec.block_ids[start : start + size].tolist()
            start += size
            found += [self._blocks[ref.tensor_idx][blocks, : ref.page_size_bytes] for ref in refs]
        return found

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: Any) -> bool:
        if job_id in self._as_computed:
            for before, now in zip(self._as_computed.pop(job_id), self._bytes_of(src_spec), strict=True):
                changed = (before != now).any(dim=1)
                HostCopies.saved += len(now)
                HostCopies.overwritten += int(changed.sum())
                HostCopies.cleared += int((changed & (now == 0).all(dim=1)).sum())
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


def watch_saves(set_attribute: Callable[[Any, str, Any], None], *, saves_first: bool) -> None:
    """Note at the beginning of each step of the V2 runner what is to be saved, and compare it then.

    Args:
        set_attribute: that of pytest's monkeypatch.
        saves_first: whether the connector is asked to save right there, as by V1.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    execute = GPUModelRunner.execute_model

    def execute_model(runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        metadata = scheduler_output.kv_connector_metadata
        if metadata is not None:
            connector: Any = get_kv_transfer_group()
            worker = connector.connector_worker
            for job, source, _ in worker._unsubmitted_store_jobs:
                worker.worker.note(job, source)
            for job in metadata.store_jobs.keys() & (metadata.jobs_to_flush or ()):
                worker.worker.note(job, metadata.store_jobs[job].src_spec)
            if saves_first:
                connector.handle_preemptions(metadata)
        return execute(runner, scheduler_output, *args, **kwargs)

    for count in ("saved", "overwritten", "cleared"):
        set_attribute(HostCopies, count, 0)
    set_attribute(GPUModelRunner, "execute_model", execute_model)


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
