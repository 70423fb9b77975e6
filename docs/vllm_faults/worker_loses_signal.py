"""The SystemExit of a worker's first SIGTERM is lost where Python calls back on a weak reference."""

import os
import signal
import weakref
from unittest.mock import MagicMock

from vllm.v1.executor.multiproc_executor import WorkerProc

LIVES_ON = 42


class Freed:
    pass


def end_twice(*_, **__):
    """As the engine core ends its workers: by one signal more, when it exits."""
    freed = Freed()
    reference = weakref.ref(freed, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    del freed
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(LIVES_ON if reference() is None else 1)


if not (child := os.fork()):
    WorkerProc.__init__ = end_twice
    config = MagicMock(logging_config=None)
    config.parallel_config.assigned_physical_gpu_ids = None
    WorkerProc.worker_main(vllm_config=config, rank=0, local_rank=0, ready_pipe=MagicMock())
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
fault = status == LIVES_ON
print(f"fault {'present' if fault else 'gone'}: behind two SIGTERM, status {status} (42: it lives on)")
raise SystemExit(not fault)
