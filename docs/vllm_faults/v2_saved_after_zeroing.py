"""V2 clears blocks for their next request before it hands what was in them to the offloading worker."""

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
