from __future__ import annotations

import json
import subprocess
import sys

import pytest

import vllm_eagle_ext
from vllm_eagle_ext import compat, plugin
from vllm_eagle_ext.families.drafter_classes import drafters

pytestmark = pytest.mark.promise("the package costs a process without a draft next to nothing")

PROBE = """
import json, sys
before = set(sys.modules)
{code}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def modules_loaded_by(code: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", PROBE.format(code=code)], capture_output=True, text=True, check=True
    )
    return json.loads(result.stdout.splitlines()[-1])


def test_importing_the_package_loads_the_standard_library_only():
    loaded = {name.split(".")[0] for name in modules_loaded_by("import vllm_eagle_ext")}
    assert loaded - set(sys.stdlib_module_names) == {"vllm_eagle_ext"}


def test_register_loads_no_vllm_module_beyond_the_registry():
    code = "\n".join(
        [
            "import vllm, vllm.model_executor.models.registry, vllm.logger",
            "before = set(sys.modules)",
            "import vllm_eagle_ext; vllm_eagle_ext.register()",
        ]
    )
    loaded = modules_loaded_by(code)
    assert [name for name in loaded if name.split(".")[0] in ("vllm", "torch", "transformers")] == []
    assert not any(name.startswith("vllm_eagle_ext.families.parts") for name in loaded)


def test_register_twice_registers_and_wraps_once():
    from vllm.engine import arg_utils
    from vllm.model_executor.models.registry import ModelRegistry

    plugin.register()
    first = arg_utils.EngineArgs.create_speculative_config
    plugin.register()
    assert arg_utils.EngineArgs.create_speculative_config is first
    assert not hasattr(first.__wrapped__, compat._WRAPPED)
    assert {*plugin.registered_drafters(), *plugin.aliases()} <= set(ModelRegistry.get_supported_archs())


def test_register_never_raises(monkeypatch, vllm_log):
    def broken(*_) -> None:
        raise RuntimeError("upstream moved it")

    monkeypatch.setattr(compat, "install_in_front_end", broken)
    vllm_eagle_ext.register()
    (record,) = vllm_log.containing("could not register itself")
    assert "upstream moved it" in record.getMessage()


def test_names_survive_vllms_rewriting_of_architectures():
    from transformers import LlamaConfig
    from vllm.transformers_utils.configs.eagle import EAGLEConfig

    methods = {drafter.architecture: drafter.method for drafter in drafters()}
    for name in plugin.registered_drafters():
        assert "EagleExt" in name
        method = methods[name]
        config = EAGLEConfig(LlamaConfig(architectures=[name]), method=method, model_type="eagle")
        assert config.architectures == [name]


def test_names_lead_to_classes_by_packages():
    """vLLM hashes a whole folder into its model-info cache only for a package."""
    import importlib

    registered = plugin.registered_drafters()
    for drafter in drafters():
        module, name = drafter.registration.split(":")
        loaded = importlib.import_module(module)
        assert isinstance(getattr(loaded, name), type)
        if not drafter.uses_vllm_class:
            assert registered[drafter.architecture] == drafter.registration
            assert loaded.__file__.endswith("__init__.py")
    assert {"LlamaEagle3DraftModel", "Eagle3LlamaEagle3DraftModel"} <= set(plugin.aliases())
    assert {"Qwen3DFlash2DraftModel", "DFlashQwen3DFlash2DraftModel"} <= set(plugin.aliases())


def test_the_plugin_loads_no_rules_of_checkpoints():
    """Every process of vLLM imports it, also those that serve no draft."""
    code = "import vllm_eagle_ext.plugin, sys; print(*(m for m in sys.modules if m in {%s}))"
    heavy = ("vllm", "torch", "pydantic", "vllm_eagle_ext.draft", "vllm_eagle_ext.start.build")
    result = subprocess.run(
        [sys.executable, "-c", code % ", ".join(map(repr, heavy))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == []
