"""`vllm-eagle plan`: what is advised, and exit code 1 where nothing fits."""

from __future__ import annotations

import pytest

OTHERWISE = "with one state block per draft token"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-k", "15", "--gpu-mem", "40"), "Nothing fits: weights and reserve take all the memory."),
        (("-k", "15", "--gpu-mem", "60"), "vLLM would not start: use --max-model-len "),
    ],
)
def test_nothing_fits(plan, options, words):
    result = plan(*options)
    assert result.exit_code == 1
    assert f"- {words}" in result.stdout if words.startswith("Nothing") else words in result.stdout
    assert (
        "; no request of 262144 tokens fits, with one state block per draft token neither."
        in result.stdout
    )


@pytest.mark.parametrize(
    ("gpu_mem", "sentence"),
    [
        ("58", "; 1 request of 8192 tokens fits, with one state block per draft token none."),
        ("61", "; 4 requests of 8192 tokens fit instead of 1."),
    ],
)
def test_a_single_request(said, gpu_mem, sentence):
    found = said("-k", "15", "--gpu-mem", gpu_mem, "--max-model-len", "8192")
    assert found["line"].endswith(sentence)


def test_as_many_with_per_token(said):
    line = said("-k", "3", "--gpu-mem", "80")["line"]
    assert line.endswith(
        "; 1 request of 262144 tokens fits, with one state block per draft token as well."
    )
    line = said("-k", "3", "--gpu-mem", "140", "--max-model-len", "262144")["line"]
    assert line.endswith(
        "; 4 requests of 262144 tokens fit, as many as with one state block per draft token."
    )


def test_few_drafts_are_planned_as_auto_takes_them(said):
    found = said("-k", "1", "--gpu-mem", "140", "--max-model-len", "32768")
    assert found["hybrid_state"]["auto"] == "per_token"
    assert found["line"] == (
        "Recurrent state: per_token, 3 state blocks per request, 450 MiB: 1 draft token saves "
        "little; on a GPU replay pays from 3. "
        "Replay would take 2 state blocks, 300 MiB. "
        "31 requests of 32768 tokens fit, with replay 33."
    )
    assert said("-k", "3", "--gpu-mem", "140")["hybrid_state"]["auto"] == "replay"


def test_the_exit_code_is_of_what_auto_takes(said):
    barely = ("--gpu-mem", "57.35", "--max-model-len", "1024", "--prefix-caching")
    few, more = said("-k", "1", *barely), said("-k", "3", *barely)
    assert few["per_token"]["requests_that_fit"] == 0 < few["replay"]["requests_that_fit"]
    assert (few["exit_code"], more["exit_code"]) == (1, 0)
    assert "With replay a request would fit." in few["advice"]


def test_the_length_that_is_advised_fits(plan):
    advice = plan("-k", "15", "--gpu-mem", "60").stdout
    length = int(advice.split("use --max-model-len ")[1].split()[0])
    assert plan("-k", "15", "--gpu-mem", "60", "--max-model-len", str(length)).exit_code == 0
    assert plan("-k", "15", "--gpu-mem", "60", "--max-model-len", str(length + 1)).exit_code == 1


def test_only_replay_fits(said):
    found = said("-k", "15", "--gpu-mem", "60", "--max-model-len", "8192")
    assert found["per_token"]["requests_that_fit"] == 0 < found["replay"]["requests_that_fit"]
    assert (
        "With one state block per draft token vLLM would not start here; with replay it does."
        in found["advice"]
    )


@pytest.mark.parametrize(("k", "is_small"), [("1", True), ("2", True), ("3", False)])
def test_few_drafts(said, k, is_small):
    advice = said("-k", k, "--gpu-mem", "140", "--max-model-len", "4096")["advice"]
    assert any(text.startswith(f"K = {k} is small") for text in advice) == is_small


def test_prefix_caching_costs_a_state_block(said):
    short = ("-k", "15", "--gpu-mem", "140", "--max-model-len", "1024")
    advice = said(*short)["advice"]
    fit = said(*short, "--no-prefix-caching")["replay"]["requests_that_fit"]
    assert any(f"1 state block instead of 2: {fit} requests would fit" in text for text in advice)


def test_more_fit_than_run(said):
    found = said("-k", "15", "--gpu-mem", "140", "--max-model-len", "1024", "--max-num-seqs", "8")
    assert found["replay"]["requests_that_run"] == 8
    assert any("requests fit and 8 run" in text for text in found["advice"])


def test_a_cpu(said):
    found = said("-k", "7", "--gpu-mem", "140", "--max-model-len", "1024", "--cpu", "--prefix-caching")
    assert (found["replay"]["pages_per_request"], found["per_token"]["pages_per_request"]) == (3, 9)
    assert found["per_token"]["attention_block_tokens"] % 128 == 0
    assert any("vLLM would not start here" in text for text in found["advice"])
    assert found["exit_code"] == 1


def test_a_cpu_without_prefix_caching_unless_asked_for(said):
    cpu = ("-k", "7", "--gpu-mem", "140", "--max-model-len", "1024", "--cpu")
    found, without = said(*cpu), said(*cpu, "--no-prefix-caching")
    assert found == without
    assert found["hybrid_state"]["auto"] == "replay"
    assert found["exit_code"] == 0
