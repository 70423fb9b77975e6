from __future__ import annotations

import json
import os

import pytest

from tests.unit.draft.hostile.test_hostile_files import time_limit
from vllm_eagle_ext.draft.vocabulary import compare_tokenizers

TOKENS = {"a": 0, "b": 1, "ab": 2}
ADDED = [{"id": 3, "content": "<s>", "special": True}]


def tokenizer(vocabulary, added=ADDED, **model):
    return {"version": "1.0", "added_tokens": added, "model": {"vocab": vocabulary, **model}}


@pytest.fixture
def compare(tmp_path):
    """Bytes are written as they are, None leaves the file out."""

    def run(draft, target):
        folders = [tmp_path / "draft", tmp_path / "target"]
        for folder, content in zip(folders, (draft, target), strict=True):
            folder.mkdir()
            if content is not None:
                raw = content if isinstance(content, bytes) else json.dumps(content).encode()
                (folder / "tokenizer.json").write_bytes(raw)
        return compare_tokenizers(*folders)

    return run


LISTED = [["a", -1.0], ["b", -2.0], ["ab", -3.5]]
BACKWARDS = tokenizer(dict(reversed(TOKENS.items())), merges=["a b"])
SAME = {
    "file": (tokenizer(TOKENS), tokenizer(TOKENS)),
    "no_tokenizer": (b"[", b"["),  # what it means is for others to say
    "formatting": (json.dumps(BACKWARDS, indent=2).encode(), tokenizer(TOKENS, merges=[["a", "b"]])),
    "a_mask_of_the_draft": (tokenizer(TOKENS | {"c": 9}), tokenizer(TOKENS)),
    "what_a_draft_never_sees": (tokenizer(TOKENS), tokenizer(TOKENS | {"c": 9})),
    "no_added_tokens": (tokenizer(TOKENS, None), tokenizer(TOKENS, [])),
    "added_within_the_vocabulary": (tokenizer(TOKENS), tokenizer(TOKENS | {"<s>": 3}, [])),
    "unigrams": (tokenizer(LISTED, unk_id=0), tokenizer(TOKENS)),
    "scores": (tokenizer([["a", -1.0]]), tokenizer([["a", -9.0]])),
}
OTHER = {
    "ids": (tokenizer(TOKENS | {"b": 2, "ab": 1}), tokenizer(TOKENS), "2 tokens, such as 'ab'"),
    "beside_a_mask": (tokenizer(TOKENS | {"c": 9, "b": 4}), tokenizer(TOKENS), "1 tokens, such as 'b'"),
    "added": (tokenizer(TOKENS, [{"id": 4, "content": "<s>"}]), tokenizer(TOKENS), "such as '<s>'"),
    "order": (tokenizer(LISTED[:2]), tokenizer(LISTED[1::-1]), "2 tokens, such as 'a'"),
}


@pytest.mark.parametrize("files", SAME.values(), ids=SAME)
def test_the_same_tokens(compare, files):
    assert compare(*files) is None


@pytest.mark.parametrize(("draft", "target", "words"), OTHER.values(), ids=OTHER)
def test_other_tokens(compare, draft, target, words):
    difference = compare(draft, target)
    assert difference.startswith("one that differs in ")
    assert difference.endswith(words)


@pytest.mark.parametrize(("draft", "target"), [(None, TOKENS), (TOKENS, None), (None, None)])
def test_only_one_of_them_has_a_file(compare, draft, target):
    assert compare(draft and tokenizer(draft), target and tokenizer(target)) is None


def test_hub_and_folder(tmp_path):
    assert compare_tokenizers(None, tmp_path) is None
    assert compare_tokenizers(tmp_path, None) is None


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"model":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"model": {"vocab": {"a": %s}}}' % (b"9" * 100_000),
        b"{" * 2**21,
        tokenizer(None),
        tokenizer("abc"),
        tokenizer(7),
        tokenizer([[]]),
        tokenizer([7]),
        tokenizer([[["a"], 1.0]]),
        tokenizer([[{}, 1.0]]),
        tokenizer(TOKENS, 7),
        tokenizer(TOKENS, [7]),
        tokenizer(TOKENS, [{}]),
        tokenizer(TOKENS, [{"id": 1, "content": []}]),
        {"model": []},
        {},
    ],
    ids=range(22),
)
def test_hostile_files(compare, hostile):
    assert compare(hostile, tokenizer(TOKENS)).startswith("one that cannot be read (")


def test_tokens_of_many_types(compare):
    hostile = [[7, 0.0], ["a", 0.0], [None, 0.0], [False, 0.0], [0.5, 0.0]]
    assert "differs in 5 tokens" in compare(tokenizer(hostile), tokenizer(hostile[1:] + hostile[:1]))


def test_ids_of_many_types(compare):
    hostile = {"a": [], "b": None, "ab": {"c": 1}}
    assert "differs in 3 tokens" in compare(tokenizer(hostile), tokenizer(TOKENS))


def test_token_that_floods_or_clears_the_terminal(compare):
    token = "\x1b[2J" * 10_000
    difference = compare(tokenizer({token: 0}), tokenizer({token: 1}))
    assert difference.isprintable()
    assert len(difference) < 1000


def test_too_large(compare):
    assert compare(b" " * (16 * 2**20 + 1), tokenizer(TOKENS)) is None


def test_sparse_gigabyte(compare, tmp_path):
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 2**30)
    assert compare(None, tokenizer(TOKENS)) is None
    (tmp_path / "draft" / "tokenizer.json").symlink_to(tmp_path / "sparse")
    assert compare_tokenizers(tmp_path / "draft", tmp_path / "target") is None


def test_pipe(compare, tmp_path):
    compare(None, tokenizer(TOKENS))
    os.mkfifo(tmp_path / "draft" / "tokenizer.json")
    assert compare_tokenizers(tmp_path / "draft", tmp_path / "target") is None


def test_hostile_file_takes_no_time(compare):
    hostile = b'{"model":{"vocab":[' + b"[[[]]]," * (2**19 // 3 - 10) + b"[]]}}"
    with time_limit():
        assert "cannot be read" in compare(hostile, tokenizer(TOKENS))


def test_real_size(compare):
    vocabulary = {f"token{number}": number for number in range(150_000)}
    merges = [[f"to{number}", "ken"] for number in range(300_000)]
    difference = compare(
        tokenizer(vocabulary | {"token7": 8}, merges=merges), tokenizer(vocabulary, merges=merges)
    )
    assert difference == "one that differs in 1 tokens, such as 'token7'"
