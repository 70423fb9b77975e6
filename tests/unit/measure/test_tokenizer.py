"""A stranger's tokenizer and chat template: bounds of time and memory, and whose code runs."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support.engine import TINY
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure import tokenizer
from vllm_eagle_ext.measure.engine.client import refuse_reserved
from vllm_eagle_ext.measure.prompts import token_ids, tokenizer_keywords

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
EVIL = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast

Path(__file__).with_name("ran").touch()
Path("MARK").touch()

class Evil(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def target(tmp_path):
    """A tokenizer whose files a test spoils."""
    for file in (TINY / "target").glob("*token*"):
        shutil.copy(file, tmp_path)
    shutil.copy(TINY / "target/config.json", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('Roles\\n\\x1b[2J must alternate') }}", "TemplateError: Roles"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ messages.x.y }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        (LOOPS, "SIGXCPU"),
        ("{% set x = 'x' * 10 ** 10 %}{{ x }}", "MemoryError"),
    ],
)
def test_a_template_that_fails_is_one_line(target, monkeypatch, template, words):
    monkeypatch.setattr(tokenizer, "SECONDS", 2)
    (target / "chat_template.jinja").write_text(template)
    with pytest.raises(
        SpeculativeConfigError, match=f"chat template of the target is .*{words}"
    ) as raised:
        token_ids(["Hello"], str(target))
    assert str(raised.value).isprintable()
    assert token_ids(["Hello"], str(target), chat_template=False).ids


def test_a_tokenizer_that_fails_is_one_line(target):
    (target / "tokenizer.json").write_text("[" * 50_000)
    with pytest.raises(SpeculativeConfigError, match="tokenizer of the target is") as raised:
        token_ids(["Hello"], str(target))
    assert str(raised.value).isprintable()


def test_memory_is_bounded(target, monkeypatch):
    monkeypatch.setattr(tokenizer, "GIB", 0.1)
    with pytest.raises(SpeculativeConfigError, match=r"MemoryError|SIGABRT"):
        token_ids(["Hello " * 2**22], str(target), chat_template=False)


@pytest.mark.parametrize(
    ("trusted", "runs"),
    [(True, True), (False, False), (None, False), ("false", False), (1, False), ([0], False)],
)
def test_only_true_runs_code_of_the_target(target, trusted, runs):
    (target / "evil.py").write_text(EVIL.replace("MARK", str(target / "ran")))
    file = target / "tokenizer_config.json"
    auto = {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "tokenizer_class": "Evil"}
    file.write_text(json.dumps(json.loads(file.read_text()) | auto))
    engine = {} if trusted is None else {"trust_remote_code": trusted}
    try:
        token_ids(["Hello"], str(target), **tokenizer_keywords(engine))
    except SpeculativeConfigError:
        assert not runs
    assert (target / "ran").exists() == runs


def test_no_module_of_the_working_folder_is_run(target, monkeypatch):
    """A user may stand in the target's folder."""
    (target / "transformers.py").write_text("raise SystemExit('this file was run')")
    monkeypatch.chdir(target)
    assert token_ids(["Hello"], ".").ids


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("trust_remote_code", "false", "true or false"),
        ("trust_remote_code", 1, "true or false"),
        ("enable_prefix_caching", "False", "true or false"),
        ("max_num_seqs", "4", "a whole number"),
        ("revision", 7, "text"),
    ],
)
def test_another_type_is_refused_by_name(name, value, allowed):
    with pytest.raises(SpeculativeConfigError, match=f"--engine: {name} is .*Allowed: {allowed}"):
        refuse_reserved({name: value})
    refuse_reserved({name: None})
