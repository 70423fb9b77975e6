"""The SystemExit of a worker's SIGTERM is lost where Python calls back on a weak reference."""

import multiprocessing
import time
import weakref
from unittest.mock import MagicMock

from vllm.v1.executor.multiproc_executor import WorkerProc

LIMIT_S = 10
fork = multiprocessing.get_context("fork")
freeing = fork.Event()


def construct(self, *_, **__):
    """A worker that frees something until SIGTERM comes, and then waits for requests."""
    self.worker = self.worker_response_mq = self.rpc_broadcast_mq = self.handle_output = MagicMock()
    self.rank, self.peer_response_handles = 0, []
    self.rpc_broadcast_mq.dequeue = lambda **_: (time.sleep(0.1), ("idle", (), {}, None))[1]
    freed = type("Freed", (), {})()
    _reference = weakref.ref(freed, lambda _: (freeing.set(), time.sleep(LIMIT_S)))


def work():
    WorkerProc.__init__ = construct
    config = MagicMock(logging_config=None)
    config.parallel_config = MagicMock(assigned_physical_gpu_ids=None, numa_bind=False)
    WorkerProc.worker_main(vllm_config=config, rank=0, local_rank=0, ready_pipe=MagicMock())
    raise RuntimeError("the worker ended by itself")


(worker := fork.Process(target=work, daemon=True)).start()
assert freeing.wait(LIMIT_S)
worker.terminate()  # as the engine core does once when it exits, and then joins without a limit
worker.join(LIMIT_S)
status = worker.exitcode
assert status in (None, 0, -15), status
print(f"fault {'present' if status is None else 'gone'}: behind SIGTERM the exit status is {status}")
worker.kill()
raise SystemExit(status is not None)
