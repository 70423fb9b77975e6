"""`vllm-eagle plan`: what is advised, and exit code 1 where nothing fits."""

from __future__ import annotations

import pytest

from tests.unit.cli.output import refusal

OTHERWISE = "with one state block per draft token"


SHORT = ("--max-model-len", "1024")
SENTENCES = [  # options, end of the sentence
    (("-k", "15", "--gpu-mem", "58", "--max-model-len", "8192"),
     f"; 1 request of 8192 tokens fits, {OTHERWISE} none."),
    (("-k", "15", "--gpu-mem", "61", "--max-model-len", "8192"),
     "; 4 requests of 8192 tokens fit instead of 1."),
    (("-k", "3", "--gpu-mem", "80"), f"; 1 request of 262144 tokens fits, {OTHERWISE} as well."),
    (("-k", "3", "--gpu-mem", "140"),
     f"; 4 requests of 262144 tokens fit, as many as {OTHERWISE}."),
    (("-k", "15", "--gpu-mem", "40"), f"; no request of 262144 tokens fits, {OTHERWISE} neither."),
    (("-k", "1", "--gpu-mem", "140", "--max-model-len", "32768"),
     ("1 draft token saves little; on a GPU replay pays from 3. Replay would take 2 state blocks, 300 "
     "MiB. 31 requests of 32768 tokens fit, with replay 33.")),
]  # fmt: skip


@pytest.mark.parametrize(("options", "sentence"), SENTENCES, ids=str)
def test_the_sentence(said, options, sentence):
    assert said(*options)["line"].endswith(sentence)


ADVICE = [  # options, a part of the advice
    (("-k", "15", "--gpu-mem", "40"), "Nothing fits: weights and reserve take all the memory."),
    (("-k", "15", "--gpu-mem", "60"), "vLLM would not start: use --max-model-len "),
    (("-k", "15", "--gpu-mem", "60", "--max-model-len", "8192"),
     "With one state block per draft token vLLM would not start here; with replay it does."),
    (("-k", "15", "--gpu-mem", "140", "--max-num-seqs", "8", *SHORT), "requests fit and 8 run"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "words"), ADVICE, ids=str)
def test_what_is_advised(said, options, words):
    assert words in " ".join(said(*options)["advice"])


def test_the_exit_code_is_of_what_auto_takes(said, plan):
    barely = ("--gpu-mem", "57.35", "--prefix-caching", *SHORT)
    few, more = said("-k", "1", *barely), said("-k", "3", *barely)
    assert few["per_token"]["requests_that_fit"] == 0 < few["replay"]["requests_that_fit"]
    assert (few["exit_code"], more["exit_code"]) == (1, 0)
    assert "With replay a request would fit." in few["advice"]
    assert plan("-k", "1,3", *barely).exit_code == 1  # the worst


def test_the_length_that_is_advised_fits(plan):
    options = ("-k", "15", "--gpu-mem", "60")
    length = int(plan(*options).stdout.split("use --max-model-len ")[1].split()[0])
    assert plan(*options, "--max-model-len", str(length)).exit_code == 0
    assert plan(*options, "--max-model-len", str(length + 1)).exit_code == 1


def test_a_cpu(said, plan):
    """Without prefix caching, with which vLLM would not start."""
    cpu = ("-k", "7", "--gpu-mem", "140", "--platform", "cpu", *SHORT)
    planned = said(*cpu)
    assert planned == said(*cpu, "--no-prefix-caching")
    assert (planned["hybrid_state"]["auto"], planned["exit_code"]) == ("replay", 0)
    assert planned["per_token"]["attention_block_tokens"] % 128 == 0
    assert "use --no-prefix-caching" in refusal(plan(*cpu, "--prefix-caching"))
