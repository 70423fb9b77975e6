"""The line of a start is one, whatever the number of cache groups, each of which has a builder."""

from __future__ import annotations

import logging
from unittest import mock

import pytest

from tests.support.engine import has_gpu

if has_gpu():
    pytest.skip("builders with a CPU's buffers", allow_module_level=True)

from benchmarks.step_launches import QWEN_27B
from benchmarks.step_metadata import Runner, Setting
from vllm_eagle_ext.memory.footprint import Footprint
from vllm_eagle_ext.replay import built_caches, metadata


@pytest.mark.parametrize("groups", [1, 3, 48])
def test_one_of_the_builders_says_it(monkeypatch, vllm_log, groups):
    asked = []

    def report(config):
        asked.append(config)
        need = Footprint(block_bytes=1, blocks=10, state=1, state_blocks=len(asked))
        return need, need, 100

    def log(config):
        config.cache_config.num_gpu_blocks = config.model_config.max_model_len = 100
        built_caches.log_start_line(config)

    monkeypatch.setattr(built_caches, "both_footprints", report)
    monkeypatch.setattr(metadata, "log_start_line", log)
    with mock.patch.object(built_caches, "log_once") as said:
        runner = Runner(Setting(QWEN_27B, groups, k=15, requests=4, device="cpu"), replays=True)
    assert asked == [runner.config]
    said.assert_called_once_with(built_caches.logger, logging.INFO, mock.ANY)
    assert "replay, 1 state block per request" in said.call_args.args[2]
    assert not vllm_log.containing("Could not estimate")
