"""A block is cleared before it is saved to the host.

Kind: refused beforehand.
Met by: `OffloadingConnector` (`--kv-offloading-size`) with hybrid targets on the V2 runner, with or
  without drafts, where the cache is full. A `MultiConnector` hands each call on to the connectors
  within it (by reading).
Symptom: An offloaded prefix comes back as zeros or as another request's: texts are silently wrong.
Cause: What a step computed is saved at the beginning of the next one: `handle_preemptions` submits it.
  A request that ends or is preempted in between gives its blocks back, and the next step may hand them
  out. The scheduler knows (`jobs_to_flush`), and V1 submits before it touches any block
  (`v1/worker/gpu_model_runner.py`, `GPUModelRunner.execute_model`). V2 submits in
  `v1/worker/gpu/kv_connector.py`, `ActiveKVConnector.pre_forward`, right before the forward: after
  `v1/worker/gpu/model_runner.py`, `GPUModelRunner.update_requests`, which clears the new blocks of
  targets with recurrent states, and after the copy of states into new blocks (`preprocess_state`).
Releases: 0.32 (run), 0.33 (by reading).
Workaround: Replay is not offered with a connector: `auto` takes one state block per draft token,
  `replay` is refused (`start/rules/states.py`, `unsupported_by_replay`). With those, and without
  drafts, vLLM's fault stays: on V2 leave offloading off where the cache may fill up. A start with a
  draft warns (`start/rules/states.py`, `states_are_saved_in_time`).
Remedy: no offloading on V2 where the cache may fill up.
Can go when: V2 calls `handle_preemptions` before `update_requests`.
"""

from unittest.mock import MagicMock

import numpy as np
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading import common, worker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.forward_context import override_forward_context
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_offload.base import GPULoadStoreSpec
from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

BLOCK, JOB, cache, host = 2, 0, torch.full((4, 8), 7.0), {}
copies = MagicMock(get_finished=lambda: [])
copies.submit_store = lambda job, source, _: not host.update({job: cache[source.block_ids].clone()})
offloading = OffloadingConnector.__new__(OffloadingConnector)
offloading.connector_scheduler = None
offloading.connector_worker = worker.OffloadingConnectorWorker(MagicMock(), None, None)
offloading.connector_worker.worker = copies
active = ActiveKVConnector.__new__(ActiveKVConnector)
active.kv_connector, active._pending_load_kwargs, active._disabled = offloading, None, False
runner = MagicMock(kv_connector=active)
runner.update_requests = lambda step: GPUModelRunner.update_requests(runner, step)
runner.req_states.num_computed_tokens_np = runner.req_states.prefill_len.np = np.zeros(1)
runner.req_states.num_computed_prefill_tokens = np.zeros(1)
runner.kv_block_zeroer.zero_block_ids = lambda blocks: cache.index_fill_(0, torch.tensor(blocks), 0)
saves = {JOB: common.TransferJob("a", GPULoadStoreSpec([BLOCK], [1], [0]), None)}
# The second step hands the block out again, as the scheduler says; neither step has tokens.
for jobs, flush, new_blocks in (saves, None, None), ({}, {JOB}, [BLOCK]):
    step = SchedulerOutput.make_empty()
    step.kv_connector_metadata = common.OffloadingConnectorMetadata({}, jobs, flush)
    step.new_block_ids_to_zero = new_blocks
    with override_forward_context(MagicMock()):
        GPUModelRunner.execute_model(runner, step)
fault = bool(host[JOB].eq(0).all())
print(f"fault {'present' if fault else 'gone'}: sevens were saved as {host[JOB].unique().tolist()}")
raise SystemExit(not fault)
