"""vLLM's options for KV connectors and offloading, as they are read."""

from __future__ import annotations

import pytest

from vllm_eagle_ext.memory.connectors import OFFLOADING, Connector, read_connector

TIERS = {"kv_connector_extra_config": {"secondary_tiers": [{"type": "fs", "root_dir": "kv"}]}}
AS_WRITTEN = [
    ((None, None, None), None),
    ((None, None, "native"), None),  # vLLM's default
    (({"kv_connector": "NixlConnector"}, None, None), Connector("NixlConnector")),
    (({"kv_connector": OFFLOADING, **TIERS}, None, None), Connector(OFFLOADING, True)),
    ((None, 4.0, None), Connector(OFFLOADING)),
    ((None, 4.0, "native"), Connector(OFFLOADING)),
    ((None, 4.0, "lmcache"), Connector("lmcache")),
]


@pytest.mark.parametrize(("options", "connector"), AS_WRITTEN, ids=str)
def test_options_as_written(options, connector):
    assert read_connector(*options) == connector


def test_an_object_of_vllm():
    from vllm.config import KVTransferConfig

    config = KVTransferConfig(kv_connector=OFFLOADING, kv_role="kv_both", **TIERS)
    assert read_connector(config, None, "native") == Connector(OFFLOADING, has_second_tiers=True)


@pytest.mark.parametrize(("value", "name"), [("1", "SimpleCPUOffloadConnector"), ("0", OFFLOADING)])
def test_what_vllm_makes_of_the_native_backend(monkeypatch, value, name):
    """As vLLM itself names it."""
    from vllm import envs
    from vllm.config import CacheConfig, VllmConfig

    monkeypatch.setenv("VLLM_USE_SIMPLE_KV_OFFLOAD", value)
    assert envs.VLLM_USE_SIMPLE_KV_OFFLOAD is (value == "1")
    cache = CacheConfig(kv_offloading_size=1.0, kv_offloading_backend="native")
    made = VllmConfig(cache_config=cache).kv_transfer_config
    assert made is not None
    assert read_connector(None, 1.0, "native").name == made.kv_connector == name


def test_files_of_a_second_tier_are_named_without_the_states_layout():
    """Why replay is refused there; it may be served once vLLM names it."""
    import inspect

    from vllm.v1.kv_offload.file_mapper import FileMapper

    named = inspect.signature(FileMapper).parameters
    assert {"model_name", "tokens_per_hash", "dtype", "kv_cache_groups"} <= set(named)
    assert not [name for name in named if "page" in name or "state" in name or "shape" in name]
    groups = inspect.getsource(FileMapper.from_offloading_spec)
    assert '"tokens_per_block"' in groups
    assert "page_size" not in groups
