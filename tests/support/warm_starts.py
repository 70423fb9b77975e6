"""vLLM's `create_engine_config` under the plugin, in a fork of one warm process for each start.

A start costs some hundredths of a second so; vLLM's imports cost several. What a CPU can do is pinned
to the most: a verdict must not depend on the machine that asks.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from tests.support.forks import in_fork

LIMIT = 120  # seconds for one start
_TAIL = re.compile(r" \[type=.*|\n +For further information visit .*|\nFor further information .*")


class _Collected(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname.lower()}: {record.getMessage()}")


def warm(cache: str, first: Iterable[dict[str, Any]] = ()) -> None:
    """Import what starts use, once a process.

    Args:
        cache: a folder in place of the user's cache of vLLM.
        first: keywords of starts that are tried at once, for what vLLM imports late.
    """
    os.environ |= {
        "VLLM_CACHE_ROOT": cache, "VLLM_LOGGING_LEVEL": "CRITICAL", "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    }  # fmt: skip
    os.environ.pop("VLLM_USE_V2_MODEL_RUNNER", None)
    import torch
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins
    from vllm.transformers_utils import repo_utils

    from vllm_eagle_ext.memory.device import LoadedKernels

    if not current_platform.is_cpu():
        raise SystemExit("starts are compared on vLLM's CPU platform")
    torch.cpu._is_avx512_bf16_supported = torch.cpu._is_amx_tile_supported = lambda: True
    for name in ("packed_weights", "exact_int8", "bf16", "tiles"):
        setattr(LoadedKernels, name, True)
    # A model's class is looked at here, not in a process of its own.
    registry._run_in_subprocess = lambda look: look()
    repo_utils.time = SimpleNamespace(sleep=lambda seconds: None)  # before a config is read again
    load_general_plugins()
    for keywords in first:
        _start(keywords)
    gc.collect()
    gc.freeze()


def start(keywords: dict[str, Any]) -> dict[str, Any]:
    """Make a config of EngineArgs in a fork: what was settled or said, and what this package logged."""
    text, status = in_fork(lambda: json.loads(json.dumps(_start(keywords), default=str)), LIMIT)
    if not text:
        return {"served": False, "by": "process", "error": f"ended with status {status}", "logged": []}
    answer: dict[str, Any] = json.loads(text)
    return answer


def _start(keywords: dict[str, Any]) -> dict[str, Any]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    from vllm_eagle_ext.errors import EagleExtError
    from vllm_eagle_ext.log import log_once

    log_once.cache_clear()
    handler, logger = _Collected(), logging.getLogger("vllm.vllm_eagle_ext")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = [handler]
    answer: dict[str, Any]
    try:
        args = AsyncEngineArgs(**keywords)
        config = args.create_engine_config(UsageContext.OPENAI_API_SERVER)
        answer = {"served": True, **_settled(config)}
    except EagleExtError as error:
        answer = {"served": False, "by": type(error).__name__, "error": str(error)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a start ends with is the answer
        message = f"{type(error).__name__}: {_TAIL.sub('', str(error))}"
        answer = {"served": False, "by": "vLLM", "error": message}
    return {**answer, "logged": handler.lines}


def _settled(config: Any) -> dict[str, Any]:
    speculative, target = config.speculative_config, config.model_config
    draft = speculative and speculative.draft_model_config
    return {
        "target": target.architecture,
        "draft": draft and draft.architecture,
        "method": speculative and speculative.method,
        "k": speculative and speculative.num_speculative_tokens,
        "runner": "v2" if config.use_v2_model_runner else "v1",
        "prefix caching": config.cache_config.enable_prefix_caching,
        "length": target.max_model_len,
    }
