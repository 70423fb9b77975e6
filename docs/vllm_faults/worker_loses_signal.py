"""The SystemExit of a worker's SIGTERM is lost where Python calls back on a weak reference."""

import multiprocessing
import signal
import time
import weakref
from unittest.mock import MagicMock

from vllm.v1.executor.multiproc_executor import WorkerProc

LIMIT_S = 10
context = multiprocessing.get_context("fork")
freeing = context.Event()


class Freed:
    pass


def construct(self, *_, **__):
    """A worker that frees something until SIGTERM comes, and then waits for requests."""
    self.worker = self.worker_response_mq = self.rpc_broadcast_mq = MagicMock()
    self.rank, self.handle_output, self.peer_response_handles = 0, MagicMock(), []
    self.rpc_broadcast_mq.dequeue = lambda **_: (time.sleep(0.1), ("idle", (), {}, None))[1]
    freed = Freed()
    reference = weakref.ref(freed, lambda _: (freeing.set(), time.sleep(LIMIT_S)))
    del freed
    assert reference() is None


def work():
    WorkerProc.__init__ = construct
    config = MagicMock(logging_config=None)
    config.parallel_config = MagicMock(assigned_physical_gpu_ids=None, numa_bind=False)
    WorkerProc.worker_main(vllm_config=config, rank=0, local_rank=0, ready_pipe=MagicMock())
    raise RuntimeError("the worker ended by itself")


worker = context.Process(target=work, daemon=True)
worker.start()
if not freeing.wait(LIMIT_S):
    raise RuntimeError("the worker did not come to free anything")
worker.terminate()  # as the engine core does once when it exits, and then joins without a limit
worker.join(LIMIT_S)
fault = worker.is_alive()
status = worker.exitcode
worker.kill()
worker.join()
if status not in (None, 0, -signal.SIGTERM):
    raise RuntimeError(f"the worker failed with status {status}")
print(f"fault {'present: behind SIGTERM the worker lives on' if fault else 'gone: the worker ended'}")
raise SystemExit(not fault)
