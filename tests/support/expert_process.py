"""A target whose experts are divided among two ranks, with a gated draft: loaded, not run.

    python -m tests.support.expert_process JOB RESULT

vLLM 0.32's CPU kernel for experts ignores which of them a rank has: its worker dies at the first step.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

from tests.support.targets.drafts import write_draft
from tests.support.targets.models import write_target

AUX_LAYERS = 5


def main() -> None:
    from vllm import LLM

    folder = Path(tempfile.mkdtemp(dir=Path(sys.argv[2]).parent))
    target = write_target("qwen3-moe", folder / "target", torch.float32)
    path, draft = write_draft("gated", AUX_LAYERS, folder / "draft")
    llm = LLM(
        str(target),
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=128,
        gpu_memory_utilization=0.2,
        tensor_parallel_size=2,
        enable_expert_parallel=True,
        speculative_config={
            "method": draft.method,
            "model": str(path),
            "num_speculative_tokens": draft.k,
        },
        worker_extension_cls="tests.support.recorder.Recorder",
    )
    Path(sys.argv[2]).write_text(json.dumps(llm.collective_rpc("identity")))
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
