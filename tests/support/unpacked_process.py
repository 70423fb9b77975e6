"""`batches_process` as on a CPU that packs no convolutions, or without the refusal of packed ones.

    python -m tests.support.unpacked_process JOBS RESULT

JOBS is {"engines": .., "packed": whether this CPU packs as it does}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from tests.support import batches_process
from vllm_eagle_ext.memory.state_scheme import Situation


def main() -> None:
    job = Path(sys.argv[1])
    asked = json.loads(job.read_text())
    if asked["packed"]:
        Situation.per_token_misreads = property(lambda _: False)  # type: ignore[method-assign,assignment]
    else:
        torch.cpu._is_avx512_bf16_supported = lambda: False
    job.write_text(json.dumps(asked["engines"]))
    batches_process.main()


if __name__ == "__main__":
    main()
