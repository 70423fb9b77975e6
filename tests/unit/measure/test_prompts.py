"""Where prompts come from, and what a tokenizer makes of them."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from tests.support.engine import TINY
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.prompts import read_prompts, token_ids

TARGET = str(TINY / "target")


def read_texts(source, **how):
    return [text for text, _ in read_prompts(source, **how)]


def test_built_in_prompts_are_distinct():
    texts = read_texts(None)
    assert len(texts) == len(set(texts)) == 40
    assert read_texts(None, count=3) == texts[:3]


def test_lines_of_a_file(tmp_path):
    file = tmp_path / "prompts"
    file.write_text(
        'plain words\n\n"a string"\n{"text": "of text"}\n{"prompt": "of prompt"}\n[1]\n{broken\n'
        '{"text": ""}\n{"messages": [{"role": "user", "content": "of a turn"}]}\r\n' + "[" * 10**5
    )
    assert read_texts(str(file)) == [
        "plain words", "a string", "of text", "of prompt", "[1]", "{broken", "of a turn", "[" * 10**5
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["prompts.txt", "prompts.jsonl"])
def test_lines_end_at_line_feeds_only(tmp_path, name):
    texts = ["a\u2028b", "c\x85d", "e\x0cf", "g"]
    written = "\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts)
    (tmp_path / name).write_text("\ufeff" + written, encoding="utf-8")
    assert read_texts(str(tmp_path / name)) == texts


TURNS = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"question": "q", "answer": "a"}, "line 2: .* it has 'question', 'answer'"),
        ([{"text": "x"}], "line 2: neither a text nor an object"),
        ({"messages": TURNS}, "'messages' of one user turn; it has 'messages'"),
        ({"messages": TURNS[1:]}, "'messages' of one user turn"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "of one user turn"),
        ({"text": 0}, "it has 'text'"),
        ({"text": ["x"]}, "it has 'text'"),
        ({}, "it has no key"),
        ({"\x1b[2J\n": 1}, r"it has '\\x1b\[2J\\n'"),
        ({"text": "\ud800 x"}, "line 2: .*surrogates not allowed"),
    ],
)
@pytest.mark.parametrize("name", ["prompts", "prompts.jsonl"])
def test_an_object_without_a_text_is_refused(tmp_path, name, line, words):
    (tmp_path / name).write_text(f'"first"\n{json.dumps(line)}\n')
    with pytest.raises(SpeculativeConfigError, match=words) as raised:
        read_texts(str(tmp_path / name))
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plain words", "line 2: Expecting value"),
        ('{"text": "cut', "line 2: "),
        ("[1]", "neither a text nor an object"),
        ("[" * 10**5, "nested too deeply"),
        ('{"text": ' * 10**5, "nested too deeply"),
        ("x" * (2**23 + 1), "longer than"),
    ],
)
def test_each_line_of_json_lines_is_json(tmp_path, line, words):
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'"first"\n{line}\n')
    with pytest.raises(SpeculativeConfigError, match=words):
        read_texts(str(file))
    assert read_texts(str(file), count=1) == ["first"]


def test_categories(tmp_path):
    file = tmp_path / "prompts"
    file.write_text('plain\n{"text": "of code", "category": "code"}\n{"text": "x", "category": 7}\n')
    assert [category for _, category in read_prompts(str(file))] == [None, "code", None]
    file.write_text('{"text": "x", "category": "\\ud800\\u001b[2J"}\n')
    ((_, hostile),) = read_prompts(str(file))
    assert hostile.encode()
    assert hostile.isprintable()
    built_in = {category for _, category in read_prompts(None)}
    assert built_in == {"code", "mathematics", "questions", "text", "writing"}


@pytest.mark.parametrize("content", [None, "", "\n\n"])
def test_no_prompt_is_refused(tmp_path, content):
    file = tmp_path / "prompts"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SpeculativeConfigError, match="--prompts"):
        read_texts(str(file))


def test_the_chat_template_is_applied_and_said():
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    plain = token_ids(["Hello"], TARGET, chat_template=False)
    assert (plain.chat_template, plain.ids) == (False, [tokenizer("Hello")["input_ids"]])
    chat = token_ids(["Hello"], TARGET)
    assert (chat.chat_template, tokenizer.decode(chat.ids[0])) == (True, "# user: Hello\n")


def test_a_switch_that_the_template_does_not_read_is_refused():
    with pytest.raises(SpeculativeConfigError, match="no such switch"):
        token_ids(["Hello"], TARGET, thinking=False)


def test_a_switch_reaches_the_template(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    tokenizer.chat_template = "{% if enable_thinking %}# think\n{% endif %}{{ messages[0]['content'] }}"
    tokenizer.save_pretrained(tmp_path)
    thinking, not_thinking = (
        tokenizer.decode(token_ids(["x"], str(tmp_path), thinking=on).ids[0]) for on in (True, False)
    )
    assert (thinking, not_thinking) == ("# think\nx", "x")


def test_a_target_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(SpeculativeConfigError, match="tokenizer of the target"):
        token_ids(["Hello"], str(tmp_path))
