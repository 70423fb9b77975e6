"""`vllm-eagle vocabulary`: which tokens are chosen, what it prints and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from tests.support.draft_vocabularies import native_without_a_head
from tests.support.engine import TINY
from tests.unit.cli.output import refusal
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.draft.vocabulary import read_vocabulary_file
from vllm_eagle_ext.measure import vocabulary
from vllm_eagle_ext.measure.tokenizer import Tokenizer
from vllm_eagle_ext.measure.vocabulary import choose, count_tokens

TEXTS = TINY / "prompts.jsonl"


@pytest.fixture
def run(tmp_path):
    def run(draft, *options, texts=TEXTS, target="target"):
        arguments = ["vocabulary", str(draft), "--target", str(TINY / target)]
        arguments += ["--texts", str(texts), "--out", str(tmp_path / "ids.json"), *options]
        return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, arguments)

    return run


def test_the_most_frequent_are_chosen():
    counted = Counter({5: 3, 2: 2, 9: 2, 1: 1})
    assert choose(counted, 3, 12) == [2, 5, 9]
    assert choose(counted, 2, 12) == [2, 5]  # of equally frequent ones the lowest
    assert choose(counted, 2, 12, frozenset({11})) == [5, 11]
    assert choose(counted, 6, 12) == [0, 1, 2, 3, 5, 9]


def test_a_plain_text_is_counted_with_its_line_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "_PIECE", 9)
    lines = ["def a():\n", "return 1\n"]
    tokenizer = AutoTokenizer.from_pretrained(str(TINY / "target"))
    (tmp_path / "text.py").write_text("".join(lines))
    expected = Counter(tokenizer("".join(lines))["input_ids"])
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": lines[0]}) + "\n")
    with Tokenizer(str(TINY / "target")) as bounded:
        assert count_tokens(tmp_path / "text.py", bounded) == expected
        counted = count_tokens(tmp_path / "text.jsonl", bounded)
    assert counted == Counter(tokenizer(lines[0])["input_ids"])


@pytest.mark.parametrize("name", ["text.txt", "text.JSONL"])
def test_json_lines_are_read_as_such_by_any_name(tmp_path, name):
    (tmp_path / name).write_text('{"text": "first"}\n{"prompt": "second"}\n')
    assert list(vocabulary._pieces(tmp_path / name)) == ["first", "second"]


@pytest.mark.parametrize("name", ["text.txt", "text.jsonl"])
def test_a_long_line_is_read_in_pieces(tmp_path, monkeypatch, name):
    monkeypatch.setattr(vocabulary, "_PIECE", 100)
    text = "word " * 999
    (tmp_path / name).write_text(json.dumps(text) if name.endswith("l") else text)
    pieces = list(vocabulary._pieces(tmp_path / name))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 200


def test_it_prints_and_writes(run, tmp_path):
    draft = native_without_a_head(tmp_path / "native")
    doc = json.loads(run(draft, "--entries", "768", "--json").stdout)
    ids = read_vocabulary_file(doc["out"])
    tokenizer = AutoTokenizer.from_pretrained(str(TINY / "target"))
    counted = Counter(
        token
        for line in TEXTS.read_text().splitlines()
        for token in tokenizer(json.loads(line)["text"], add_special_tokens=False)["input_ids"]
    )
    (size,) = doc["sizes"]  # 8192 and more are not below 1536
    share = sum(counted[token] for token in ids) / counted.total()
    assert size == {"entries": 768, "share": pytest.approx(share), "saved": 2 * 768 * 192}
    assert len(ids) == 768
    assert share > 0.85
    shown = run(draft, "--entries", "768", "--force").stdout
    assert f"768 entries keep {share:6.1%} of them, and read 0.3 MB less per drafted token" in shown
    assert "--additional-config" in shown


def test_fewer_entries_than_tokens_of_chats(run, monkeypatch):
    def count(texts, tokenizer):
        tokenizer.chat_tokens = frozenset(range(64))
        return Counter({1: 1})

    monkeypatch.setattr(vocabulary, "count_tokens", count)
    refused = run(TINY / "dflash", "--entries", "64", target="hybrid_target")
    assert refused.exit_code == 2
    assert "--entries is 64. Allowed: more than the 64 tokens of chats" in refused.stderr


def test_tokens_of_chats_are_kept(run, tmp_path):
    """Ends of turns and marks of thinking: plain texts lack them, and config.json need not name them."""
    target = tmp_path / "target"
    shutil.copytree(TINY / "target", target)
    doc = json.loads((target / "tokenizer.json").read_text())
    named = {id_: token for token, id_ in doc["model"]["vocab"].items()}
    of_a_turn, of_thought, unused = [id_ for id_ in range(1400, 1536) if named[id_].isalpha()][:3]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for id_ in (of_a_turn, of_thought, unused):
        added = {"id": id_, "content": named[id_], "special": id_ == of_a_turn, **plain}
        doc["added_tokens"].append(added)
    (target / "tokenizer.json").write_text(json.dumps(doc))
    (target / "chat_template.jinja").write_text("{{ messages[0].content }}" + named[of_thought])
    texts = tmp_path / "texts.txt"
    texts.write_text(" ".join(map(str, range(2000))))
    draft = native_without_a_head(tmp_path / "native")
    result = run(draft, "--entries", "64", texts=texts, target=target)
    assert result.exit_code == 0, result.output
    ids = set(read_vocabulary_file(str(tmp_path / "ids.json")))
    assert {of_a_turn, of_thought} <= ids
    assert unused not in ids


@pytest.mark.parametrize(
    ("draft", "options", "words"),
    [
        ("postnorm", ("--entries", "64"), "this one has 1024 of 1536 tokens"),
        ("native", ("--entries", "1536"), "--entries is 1536. Allowed: 64 to 1535"),
        ("native", (), "--entries is 32768"),
    ],
)
def test_refused(run, draft, options, words):
    assert words in refusal(run(TINY / draft, *options))


@pytest.mark.parametrize("text", [None, b"", b"\xff\xfe"])
def test_texts_that_cannot_be_read(run, tmp_path, text):
    file = tmp_path / "texts.jsonl"
    if text is not None:
        file.write_bytes(text)
    assert "--texts is" in refusal(run(TINY / "native", "--entries", "64", texts=file))


def test_a_file_that_cannot_be_written(run, tmp_path):
    (tmp_path / "ids.json").mkdir()
    assert "--out cannot be written" in refusal(run(TINY / "native", "--entries", "64"))


def test_an_existing_file_is_replaced_only_by_force(run, tmp_path):
    """By rename: what a link leads to stays as it is."""
    (tmp_path / "config.json").write_text("kept")
    (tmp_path / "ids.json").symlink_to(tmp_path / "config.json")
    draft = native_without_a_head(tmp_path / "native")
    assert "only --force replaces it" in refusal(run(draft, "--entries", "64"))
    assert run(draft, "--entries", "64", "--force").exit_code == 0
    assert len(read_vocabulary_file(str(tmp_path / "ids.json"))) == 64
    assert not (tmp_path / "ids.json").is_symlink()
    assert (tmp_path / "config.json").read_text() == "kept"
    assert not list(tmp_path.glob(".ids*"))


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ('{"model": "x"}', "--engine is ['model']"),
        ('{"max_model_len": "4k"}', "--engine: max_model_len is '4k'"),
        ('{"trust_remote_code": "false"}', "trust_remote_code is 'false'"),
        ('{"pipeline_parallel_size": "x"}', "pipeline_parallel_size is 'x'"),
    ],
)
def test_keywords_of_an_engine(run, engine, words):
    assert words in refusal(run(TINY / "native", "--entries", "64", "--engine", engine))
