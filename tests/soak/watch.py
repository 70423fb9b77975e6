"""Samples of a running server: vLLM's own counters, and the memory of its processes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes import part, tree

PERIOD_S = 2.0
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
USED = "vllm:kv_cache_usage_perc"
GENERATED = "vllm:generation_tokens_total"
PREEMPTED = "vllm:num_preemptions_total"
ENDED = "vllm:request_success_total"


@dataclass(frozen=True)
class Sample:
    seconds: float  # since the load began
    metrics: dict[str, float]  # summed over labels
    memory: dict[tuple[str, int], int]  # part of vLLM and process id -> resident bytes
    files: int  # open, of all processes
    threads: int

    def resident(self, name: str | None = None) -> int:
        """Sum the resident bytes of all processes, or of one part."""
        return sum(size for (kind, _), size in self.memory.items() if name in (None, kind))


def read_metrics(root_url: str) -> dict[str, float]:
    """Samples by name, summed over labels; those of `ENDED` also by reason, `name/reason`."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(f"{root_url}/metrics", timeout=60).text):
        for sample in family.samples:
            keys = [sample.name]
            if sample.name == ENDED:
                keys.append(f"{ENDED}/{sample.labels['finished_reason']}")
            for key in keys:
                sums[key] = sums.get(key, 0.0) + sample.value
    return sums


def take(root_url: str, root: int, started: float) -> Sample:
    memory, files, threads = {}, 0, 0
    for process in tree(root):
        memory[part(process), process.pid] = process.memory_info().rss
        files += process.num_fds()
        threads += process.num_threads()
    return Sample(time.monotonic() - started, read_metrics(root_url), memory, files, threads)


async def watch(root_url: str, root: int, samples: list[Sample], seconds: float) -> None:
    started = time.monotonic()
    while time.monotonic() < started + seconds:
        samples.append(await asyncio.to_thread(take, root_url, root, started))
        await asyncio.sleep(PERIOD_S)


def settle(root_url: str, url: str, seconds: float = 60) -> dict[str, float]:
    """The counters once nothing runs. Each step refreshes them, so that one more request is sent."""
    deadline = time.monotonic() + seconds
    body = {"model": "tiny", "prompt": "import os\n", "max_tokens": 8, "temperature": 0}
    while True:
        httpx.post(f"{url}/completions", json=body, timeout=60).raise_for_status()
        sums = read_metrics(root_url)
        if sums[RUNNING] + sums[WAITING] + sums[USED] == 0 or time.monotonic() > deadline:
            return sums
        time.sleep(1)
