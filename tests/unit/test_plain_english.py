"""tools/plain_english.py finds what it is for, and nothing in what it leaves out."""

from __future__ import annotations

import pytest

from tools.plain_english import (
    INSTEAD,
    MOST_WORDS,
    help_texts,
    is_searched,
    listed_words,
    long_sentences,
    prose,
)


def sentence(words: int) -> str:
    return " ".join(["word"] * words) + "."


def test_a_sentence_over_the_bound():
    assert list(long_sentences(prose(sentence(MOST_WORDS)))) == []
    assert len(list(long_sentences(prose(f"Short. {sentence(MOST_WORDS + 1)} Short.")))) == 1


@pytest.mark.parametrize("end", [". ", "\n\n", "\n- ", "\n1. ", " | ", "|"])
def test_what_ends_a_sentence(end):
    half = " ".join(["word"] * 20)
    assert list(long_sentences(prose(half + end + half))) == []


def test_a_sentence_goes_on_after_a_line():
    half = " ".join(["word"] * 20)
    assert len(list(long_sentences(prose(f"{half}\n{half}")))) == 1


@pytest.mark.parametrize("word", INSTEAD)
def test_listed_words(word):
    assert len(list(listed_words(f"It is {word.capitalize()} this."))) == 1
    assert list(listed_words(f"It is x{word}x this.")) == []


def test_to_tell_apart_is_not_to_report():
    assert list(listed_words("They are told apart by name.")) == []
    assert len(list(listed_words("They are told by name."))) == 1


def test_code_and_addresses_are_left_out():
    page = f"It is `alone`.\n\n```text\nbeside {sentence(40)}\n```\n\n[Here](behind/alone.md)."
    assert [*long_sentences(prose(page)), *listed_words(prose(page))] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm_eagle_ext/replay/protocol.py", True),
        ("docs/dev/vllm_faults/without_script/unread_bias.py", True),
        ("examples/demo/__main__.py", True),
        ("tools/faults_page.py", True),
        ("benchmarks/guard.py", True),
        ("Makefile", True),
        ("pyproject.toml", True),
        ("tools/plain_english.py", False),  # lists the words
        ("tests/unit/test_plain_english.py", False),
        ("examples/tiny/prompts.jsonl", False),
        ("benchmarks/results/step_times.json", False),
        ("docs/mytools/setup.py", False),
    ],
)
def test_the_files_that_are_searched_for_listed_words(name, expected):
    assert is_searched(name) is expected


def test_the_help_of_every_command_is_read():
    texts = dict(help_texts())
    assert texts["vllm-eagle plan -k"].startswith("Draft this many tokens")
    assert {name.split()[1] for name in texts} >= {"check", "verify", "bench", "status"}
