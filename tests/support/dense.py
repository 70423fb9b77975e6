"""The pairs of the tiny dense target: how its trained EAGLE-3 drafts are served in tests."""

from __future__ import annotations

from typing import Any

from tests.support.batches import eagle3
from tests.support.engine import TINY
from tests.support.hybrid import HybridRun

K = 4
MAX_TOKENS = 64
WIDTH = 10  # requests at a time
# Of 12 layers. The config of the post-norm pair nests the outputs of layers 1, 3, 5, 7, 9.
POSTNORM_AUX_LAYERS = (2, 4, 6, 8, 10)
NATIVE_AUX_LAYERS = (2, 6, 9)
FLOAT32 = {"dtype": "float32"}
STOCK = {"VLLM_PLUGINS": ""}  # environment of vLLM without this package


def dense(name: str, draft: str | None = None, **changes: Any) -> HybridRun:
    """An engine on the dense target. `draft`: a folder of examples/tiny; drafts are recorded."""
    common: dict[str, Any] = {"max_tokens": MAX_TOKENS, "concurrency": WIDTH, "target": TINY / "target"}
    if draft is not None:
        common |= {"speculative": eagle3(draft, K), "record": True}
    return HybridRun(name, **common | changes)
