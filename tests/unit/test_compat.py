from __future__ import annotations

import importlib.util
import logging
import sys
import types

import numpy as np
import pytest
import torch

from vllm_eagle_ext import compat
from vllm_eagle_ext.version import is_tested


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
    assert is_tested(version) is tested


def test_one_warning_outside_the_range(monkeypatch, vllm_log):
    monkeypatch.setattr(compat, "vllm_version", lambda: "0.99.0")
    compat.warn_outside_tested_range()
    compat.warn_outside_tested_range()
    (record,) = vllm_log.containing("0.99.0")
    assert record.levelno == logging.WARNING
    assert "untested_vllm" in record.getMessage()


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

    def first(module):
        seen.append(module.VALUE)

    compat.when_loaded("eagle_ext_late", first)
    compat.when_loaded("eagle_ext_late", first)
    compat.when_loaded("eagle_ext_late", lambda module: seen.append("another"))
    importlib.util.find_spec("eagle_ext_late")  # a look is no import
    assert seen == []
    import eagle_ext_late  # noqa: F401

    assert sorted(seen, key=str) == [7, "another"]
    waiting = [f.name for f in sys.meta_path if isinstance(f, compat._AfterImport)]
    assert "eagle_ext_late" not in waiting  # a registered plugin may wait for modules of vLLM's
    monkeypatch.delitem(sys.modules, "eagle_ext_late")


def test_an_action_that_fails_does_not_break_the_import(monkeypatch, tmp_path, vllm_log):
    (tmp_path / "eagle_ext_moved.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    compat.when_loaded("eagle_ext_moved", lambda module: module.EngineArgs)
    import eagle_ext_moved

    assert eagle_ext_moved.VALUE == 7
    assert vllm_log.containing("could not hook into eagle_ext_moved")
    monkeypatch.delitem(sys.modules, "eagle_ext_moved")


def test_commit_on_v1_runs_after_vllms_own_and_once():
    calls = []

    class Runner:
        def _update_states_after_model_execute(self, output_token_ids, scheduler_output):
            calls.append(("vllm", output_token_ids, scheduler_output))

    module = types.ModuleType("runner")
    module.GPUModelRunner = Runner
    for _ in "ab":
        compat._commit_on_v1(module, lambda runner, ids: calls.append(("commit", ids)))
    Runner()._update_states_after_model_execute("ids", "output")
    assert calls == [("vllm", "ids", "output"), ("commit", "ids")]


def test_vllm_leaves_expanded_settings_unfilled():
    """As long as this holds, `_repair_sampling` is needed."""
    platforms = pytest.importorskip("vllm.platforms")
    if not platforms.current_platform.is_cpu():
        pytest.skip("the kernels of vLLM's CPU build")
    platforms.current_platform.import_kernels()
    from vllm.utils.cpu_triton_utils import _expand_kernel_impl

    rows = torch.full((3,), -7.0)
    _expand_kernel_impl(rows, torch.tensor([0.5, 0.7]), torch.tensor([1, 3]), 0, 1)
    assert rows.tolist() == [-7.0] * 3


def test_settings_reach_the_rows_of_their_requests():
    """Temperatures in which 0 stands for greedy, and a request without drafts."""
    module = types.ModuleType("sampler")
    module.expand_batch_to_tokens = None
    compat._repair_sampling(module)
    expand = module.expand_batch_to_tokens
    compat._repair_sampling(module)
    assert module.expand_batch_to_tokens is expand
    ends = torch.tensor([2, 2, 5])
    rows = expand(torch.tensor([0.7, 1.3, 0.0]), ends, 5, replace_from=0, replace_to=1)
    assert torch.equal(rows, torch.tensor([0.7, 0.7, 1, 1, 1]))
    top_k = expand(torch.tensor([3, 9, 5], dtype=torch.int32), ends, 5)
    assert top_k.tolist() == [3, 3, 5, 5, 5]
    assert top_k.dtype == torch.int32


@pytest.mark.parametrize("budgets", [None, types.SimpleNamespace(in_spec_mode=True)], ids=str)
@pytest.mark.parametrize(("longest", "handed_over"), [(None, False), (0, False), (1, True), (4, True)])
def test_steps_without_drafts_are_sampled_plainly(longest, handed_over, budgets):
    """Budgets of thinking tokens count one row for each request in them."""

    class Runner:
        input_batch = types.SimpleNamespace(thinking_budget_state_holder=budgets)

        def _sample(self, logits, spec_decode_metadata):
            if budgets is not None:
                assert budgets.in_spec_mode is handed_over
            return logits, spec_decode_metadata

    module = types.ModuleType("runner")
    module.GPUModelRunner = Runner
    for _ in "ab":
        compat._sample_plainly(module)
    metadata = None if longest is None else types.SimpleNamespace(max_spec_len=longest)
    assert Runner()._sample("logits", metadata) == ("logits", metadata if handed_over else None)
    assert budgets is None or budgets.in_spec_mode


END = 7  # of thinking
BEGIN = 5


@pytest.mark.parametrize("budgeted", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_thinking_ends_in_the_row_of_its_request(budgeted):
    """vLLM's own holder, in a step without drafts of an engine with some."""
    from vllm.v1.sample.logits_processor.interface import BatchUpdate
    from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

    config = types.SimpleNamespace(reasoning_start_token_ids=[BEGIN], reasoning_end_token_ids=[END])
    holder = ThinkingBudgetStateHolder(config, 8, 4, torch.device("cpu"), False)
    added = [
        (i, types.SimpleNamespace(thinking_token_budget=0 if i in budgeted else None), [1, BEGIN], [])
        for i in range(3)
    ]
    holder.sync_batch(BatchUpdate(batch_size=3, removed=[], added=added, moved=[]))

    class Runner:
        input_batch = types.SimpleNamespace(thinking_budget_state_holder=holder)

        def _sample(self, logits, _):
            holder.update_state([[]] * 3, [[]] * 3)
            return holder.apply_to_logits(logits, False, [[]] * 3)

    module = types.ModuleType("runner")
    module.GPUModelRunner = Runner
    compat._sample_plainly(module)
    logits = Runner()._sample(torch.zeros(3, 9), types.SimpleNamespace(max_spec_len=0))
    assert [row for row in range(3) if logits[row, END] > 0] == list(budgeted)
    assert int((logits > 0).sum()) == len(budgeted)


RUNNER = "vllm.v1.worker.gpu_model_runner"
METADATA = "use_spec_decode = self.speculative_config is not None\n        if not use_spec_decode:"


@pytest.mark.parametrize(
    ("module", "text", "is_there"),
    [
        pytest.param(RUNNER, "recoverssm", False, id="commit"),
        pytest.param(RUNNER, METADATA, True, id="_sample_plainly"),
        pytest.param(
            "vllm.v1.spec_decode.llm_base_proposer",
            "get_token_id(gpu_input_batch.num_tokens_no_spec[i] - 1)", True, id="_repair_chunks",
        ),
    ],
)  # fmt: skip
def test_as_long_as_vllm_is_so_the_workaround_is_needed(module, text, is_there):
    from tests.contract.check import installed_source

    assert (text.lower() in installed_source(module).lower()) is is_there


def test_the_token_behind_a_chunk_is_found_while_drafts_are_proposed():
    """The first and the last of three requests are inside their prompts, 16 and 8 tokens done."""
    seen = []

    class Runner:
        def __init__(self):
            self.input_batch = types.SimpleNamespace(
                num_reqs=3, num_tokens_no_spec=np.array([100, 40, 90, 7])
            )
            self.discard_request_mask = types.SimpleNamespace(np=np.array([True, False, True, True]))
            self.optimistic_seq_lens_cpu = torch.tensor([16, 44, 8, 3])

        def propose_draft_token_ids(self, scheduler_output):
            seen.append(self.input_batch.num_tokens_no_spec.tolist())
            return scheduler_output

    module = types.ModuleType("runner")
    module.GPUModelRunner = Runner
    compat._repair_chunks(module)
    compat._repair_chunks(module)
    runner = Runner()
    assert runner.propose_draft_token_ids("output") == "output"
    assert seen == [[17, 40, 9, 7]]
    assert runner.input_batch.num_tokens_no_spec.tolist() == [100, 40, 90, 7]


@pytest.mark.parametrize(("cpu", "replaced"), [(True, 3), (False, 0)])
def test_workarounds_are_installed_on_a_cpu_alone(monkeypatch, cpu, replaced):
    platforms = pytest.importorskip("vllm.platforms")
    wrapped = []
    monkeypatch.setattr(platforms.current_platform, "is_cpu", lambda: cpu)
    monkeypatch.setattr(compat, "when_loaded", lambda _, wrap: wrap("module"))
    for wrap in ("_repair_sampling", "_repair_chunks", "_sample_plainly"):
        monkeypatch.setattr(compat, wrap, lambda _, name=wrap: wrapped.append(name))
    compat.install_cpu_workarounds()
    assert len(wrapped) == replaced
