"""vLLM's options for KV connectors and offloading, as they are read: what vLLM itself makes of them."""

from __future__ import annotations

import itertools
import re

import pytest

from vllm_eagle_ext.engine import EngineFacts
from vllm_eagle_ext.engine_rules.states import states_are_saved_in_time
from vllm_eagle_ext.memory.connectors import read_connector

EXTRA = {"kv_connector_extra_config": {"offload_prompt_only": False}}
OFFLOADED = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", **EXTRA}
CONFIGS = (
    None,
    EXTRA,
    {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
    OFFLOADED,
)
SEVERAL = {
    "kv_connector": "MultiConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "connectors": [{"kv_connector": "NixlConnector", "kv_role": "kv_both"}, OFFLOADED]
    },
}
COMBINED = list(itertools.product(CONFIGS, (None, 1.0), ("native", "lmcache"), ("0", "1", "2")))


def warned(connector, runner="v2"):
    engine = EngineFacts(architecture="Qwen3_5ForCausalLM", kv_connector=connector, runner=runner)
    return [str(problem) for problem in states_are_saved_in_time.check(engine)]


def as_object(config):
    from vllm.config import KVTransferConfig

    return KVTransferConfig(**config)


@pytest.mark.parametrize(("config", "size", "backend", "simple"), COMBINED, ids=str)
def test_the_connector_is_the_one_that_vllm_makes(monkeypatch, config, size, backend, simple):
    from vllm.config import CacheConfig, KVTransferConfig, VllmConfig

    monkeypatch.setenv("VLLM_USE_SIMPLE_KV_OFFLOAD", simple)
    cache = CacheConfig(kv_offloading_size=size, kv_offloading_backend=backend)
    given = None if config is None else KVTransferConfig(**config)
    expected = read_connector(config, size, backend)
    assert read_connector(given, size, backend) == expected
    vllm = VllmConfig.__new__(VllmConfig)
    vllm.cache_config, vllm.kv_transfer_config = cache, given
    vllm._post_init_kv_transfer_config()
    made = vllm.kv_transfer_config
    assert expected == (made.kv_connector if made else None)


def test_the_native_backend_is_vllms_default():
    assert read_connector(None, 4.0, None) == "OffloadingConnector"
    assert read_connector(None, None, None) is None


@pytest.mark.parametrize("read", [dict, as_object])
def test_several_are_named_one_by_one(read):
    connector = read_connector(read(SEVERAL), None, None)
    assert connector == "MultiConnector (NixlConnector, OffloadingConnector)"
    (said,) = warned(connector)
    assert re.search(r"is 'MultiConnector \(Nixl.*serve without offloading", said)
    assert read_connector(read(SEVERAL), 1.0, "native") == "OffloadingConnector"


def test_several_within_several_are_named():
    entries = (SEVERAL, {"kv_connector": "Mine"}, {}, "text")
    config = SEVERAL | {"kv_connector_extra_config": {"connectors": entries}}
    connector = read_connector(config, None, None)
    expected = "MultiConnector (MultiConnector (NixlConnector, OffloadingConnector), Mine, None, text)"
    assert connector == expected
    assert warned(connector)


@pytest.mark.parametrize("within", [None, {}, {"connectors": 3}, {"connectors": []}], ids=str)
def test_several_of_none_are_named_as_they_are(within):
    config = {"kv_connector": "MultiConnector", "kv_connector_extra_config": within}
    assert read_connector(config, None, None) == "MultiConnector"


def test_another_connectors_options_are_its_own():
    config = SEVERAL | {"kv_connector": "Mine"}
    assert read_connector(config, None, None) == "Mine"


def test_blocks_that_v2_saves_too_late_are_warned_of():
    (said,) = warned("OffloadingConnector")
    assert re.search("KV connector is 'OffloadingConnector'.*serve without offloading", said)


@pytest.mark.parametrize(
    ("connector", "runner"),
    [
        ("OffloadingConnector", "v1"),
        ("SimpleCPUOffloadConnector", "v2"),
        ("MyOffloadingConnector", "v2"),
        ("MultiConnector (NixlConnector, SimpleCPUOffloadConnector)", "v2"),
        (None, "v2"),
    ],
)
def test_others_are_not(connector, runner):
    assert not warned(connector, runner)
