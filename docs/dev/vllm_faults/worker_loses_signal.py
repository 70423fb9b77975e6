"""A worker loses its signal to end.

Kind: explains an observation.
Met by: servers with worker processes whose start fails after the loading of weights, while a worker
  still frees what it has compiled; such as one without room on the disk of its caches.
Symptom: After `EngineCore failed to start.` the server neither serves nor ends.
Cause: `v1/executor/multiproc_executor.py`, `WorkerProc.worker_main` answers SIGTERM with a SystemExit.
  Python drops an exception that is raised in the callback of a weak reference or in `__del__`, so that
  a worker that is just then freeing memory lives on. Python's own `_exit_function` of
  `multiprocessing`, by which the engine core exits, sends the signal once and waits for the worker
  without a limit.
Releases: 0.32 (run) and 0.33 (by reading).
Also shown by: with a server, in most starts here, `pytest tests/e2e/test_faults.py -m long -s -k
  full_disk`.
Workaround: None: read the error in the log, end the server's process group, and supervise starts with a
  limit.
Remedy: end the server's process group; supervise starts with a limit.
Can go when: The worker keeps the signal where its exception can be lost.
"""

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
print(f"fault {'present' if status is None else 'gone'}: after SIGTERM the exit status is {status}")
worker.kill()
raise SystemExit(status is not None)
