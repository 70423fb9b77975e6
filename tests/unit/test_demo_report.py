"""What `make demo` says of its turns, and the dtype of the examples."""

from __future__ import annotations

import runpy
import sys
from types import SimpleNamespace

import pytest

from examples.demo.report import Row, acceptance, sentences, table
from examples.dtype import choose_dtype
from examples.smollm2 import rows as training_rows
from vllm_eagle_ext.measure.engine.load import Answer, Measured


def turn(seconds, histogram=(), tokens=6):
    return Measured(seconds, [Answer(4, [5] * tokens, [tokens], 0.1, histogram=list(histogram))])


def rows(plain, drafted):
    return [Row("no draft", [turn(s) for s in plain]), Row("ours", [turn(s) for s in drafted])]


def test_a_row_counts_all_turns():
    plain, ours = rows([2.0, 4.0, 3.0], [1.0, 2.0, 3.0])
    assert plain.tokens_per_second == 2.0
    assert ours.speed_up(plain) == 1.5
    assert ours.quartiles(plain) == (1.5, 2.0)
    assert rows([2.0], [1.0])[1].quartiles(plain=rows([2.0], [1.0])[0]) == (2.0, 2.0)


def test_acceptance_sums_steps_by_how_many_drafts_they_accepted():
    answers = turn(1, [1, 0, 2]).answers + turn(1, [0, 3]).answers
    assert acceptance(answers) == pytest.approx([5 / 6, 2 / 6])
    assert acceptance(turn(1).answers) == []


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ([1.6, 1.5, 1.7], []),
        ([0.8, 0.9, 2.0], ["ours: 1.23x is not a gain everywhere; some prompts gain, others lose."]),
        (
            [0.8, 0.7, 0.9],
            ["ours: 0.80x. Drafting costs time here; serve this load without it."],
        ),
    ],
)
def test_a_loss_is_said(plain, said):
    assert list(sentences(rows(plain, [1.0] * 3))) == said


def test_other_work_is_said_on_the_table():
    shown = table(rows([1.6, 1.6], [1.0, 1.0]), "a pair", 1.1, 2)
    assert str(shown.title).endswith("other work kept 1.1 of 2 cores busy")
    assert table(rows([1.6], [1.0]), "a pair", 0.2, 2).title == "a pair"


@pytest.mark.parametrize("has", [None, "avx512_bf16", "amx_tile"])
def test_examples_compute_in_a_dtype_that_the_cpu_multiplies(has, monkeypatch, tmp_path):
    """AVX-512 without its BF16 is not enough."""
    for name in ("avx512", "avx512_bf16", "amx_tile"):
        monkeypatch.setattr(f"torch.cpu._is_{name}_supported", lambda it=name: it in ("avx512", has))
    monkeypatch.setattr("examples.dtype.has_gpu", lambda: False)
    dtype = "bfloat16" if has else "float32"
    assert choose_dtype() == dtype
    assert str(runpy.run_module("examples.smollm2.train", alter_sys=True)["DTYPE"]) == f"torch.{dtype}"
    monkeypatch.setattr(training_rows, "fetch", lambda folder: folder)
    vllm = SimpleNamespace(LLM=lambda *_, dtype, **__: sys.exit(dtype))
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    with pytest.raises(SystemExit, match=dtype):
        training_rows.main(tmp_path / "rows.jsonl")
