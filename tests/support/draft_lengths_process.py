"""The child of `draft_lengths`: python -m tests.support.draft_lengths_process JOB RESULT"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.support.draft_lengths import Watched
from tests.support.engine_process import run_batch
from tests.support.filled import UNFILLED
from tests.support.in_process import build, close, keep_kernels


def serve(engine: dict[str, Any]) -> dict[str, Any]:
    llm = build(engine, "tests.support.filled.Filled", engine["options"])
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    own = getattr(scheduler, "controller", None)
    results: dict[str, Any] = {}
    for batch in engine["batches"]:
        if own is not None:
            scheduler.controller = Watched(own, batch["name"])
        drafts = engine["speculative"] is not None
        if drafts:
            llm.collective_rpc("start_filling", args=(UNFILLED in batch["name"],))
        result = run_batch(llm, batch, results, "placed" if drafts else None)
        result["filled"] = llm.collective_rpc("take_filled")[0] if drafts else []
        result["lengths"] = scheduler.controller.lengths if own is not None else []
        results[batch["name"]] = result
    close(llm)
    return results


def main() -> None:
    results: dict[str, Any] = {}
    for engine in json.loads(Path(sys.argv[1]).read_text()):
        print(f"=== {engine['name']}", flush=True)
        try:
            results[engine["name"]] = serve(engine)
        except Exception as error:  # noqa: BLE001 - the next engine must have its turn
            trace = traceback.format_exc()
            results[engine["name"]] = {"error": f"{type(error).__name__}: {error}", "trace": trace}
        keep_kernels()
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
