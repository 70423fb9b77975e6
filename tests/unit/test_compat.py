from __future__ import annotations

import importlib.util
import logging
import sys
import types

import pytest

from vllm_eagle_ext import compat


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("0.32.0", True),
        ("0.32.0+cpu", True),
        ("0.33.1", True),
        ("0.33.0rc1", True),
        ("0.31.9", False),
        ("0.34.0", False),
        ("0.34.0.dev12", False),
        ("dev", False),
    ],
)
def test_tested_range(version, tested):
    assert compat.is_tested(version) is tested


def test_one_warning_outside_the_range(monkeypatch, vllm_log):
    monkeypatch.setattr(compat, "vllm_version", lambda: "0.99.0")
    compat.warn_outside_tested_range()
    compat.warn_outside_tested_range()
    (record,) = vllm_log.containing("0.99.0")
    assert record.levelno == logging.WARNING
    assert "untested_vllm" in record.getMessage()


def test_no_warning_inside_the_range(vllm_log):
    compat.warn_outside_tested_range()
    assert not vllm_log.records


def test_acts_at_once_on_a_loaded_module(monkeypatch):
    module = types.ModuleType("eagle_ext_probe")
    monkeypatch.setitem(sys.modules, "eagle_ext_probe", module)
    seen = []
    compat.when_loaded("eagle_ext_probe", seen.append)
    assert seen == [module]


def test_acts_once_after_a_later_import(monkeypatch, tmp_path):
    (tmp_path / "eagle_ext_late.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []
    compat.when_loaded("eagle_ext_late", lambda module: seen.append(module.VALUE))
    compat.when_loaded("eagle_ext_late", lambda module: seen.append("twice"))
    importlib.util.find_spec("eagle_ext_late")  # a look is no import
    assert seen == []
    import eagle_ext_late  # noqa: F401

    assert seen == [7]
    assert not any(isinstance(f, compat._AfterImport) for f in sys.meta_path)
    monkeypatch.delitem(sys.modules, "eagle_ext_late")


def test_an_action_that_fails_does_not_break_the_import(monkeypatch, tmp_path, vllm_log):
    (tmp_path / "eagle_ext_moved.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    compat.when_loaded("eagle_ext_moved", lambda module: module.EngineArgs)
    import eagle_ext_moved

    assert eagle_ext_moved.VALUE == 7
    assert vllm_log.containing("could not hook into eagle_ext_moved")
    monkeypatch.delitem(sys.modules, "eagle_ext_moved")


def test_v1_has_no_commit_of_its_own():
    """REMOVE WHEN of `install_commit_on_v1`: as long as this holds, it is needed."""
    from tests.contract.check import installed_source

    assert "recoverssm" not in installed_source("vllm.v1.worker.gpu_model_runner").lower()


def test_commit_on_v1_runs_after_vllms_own_and_once(monkeypatch):
    from vllm_eagle_ext.hybrid import state

    calls = []

    class Runner:
        def _update_states_after_model_execute(self, output_token_ids, scheduler_output):
            calls.append(("vllm", output_token_ids, scheduler_output))

    module = types.ModuleType("runner")
    module.GPUModelRunner = Runner
    monkeypatch.setattr(state, "commit_on_v1", lambda runner, ids: calls.append(("commit", ids)))
    compat._wrap_update_states(module)
    compat._wrap_update_states(module)
    Runner()._update_states_after_model_execute("ids", "output")
    assert calls == [("vllm", "ids", "output"), ("commit", "ids")]
