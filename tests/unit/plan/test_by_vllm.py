"""`plan`'s own arithmetic against vLLM's planner, which plans what vLLM's own classes build on the meta
device for a GPU that is described; and `plan` where it shows what that planner says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support import published
from tests.unit.cli.output import refusal
from tests.unit.memory.configs import config
from tests.unit.plan.inputs import MIB
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.plan.by_vllm import plan_by_vllm
from vllm_eagle_ext.plan.run import PlanRequest, run_plans

HYBRID = {
    "zlab_qwen3_6_27b": "qwen3_6_27b", "zlab_qwen3_5_4b": "qwen3_5_4b",
    "zlab_qwen3_coder_next": "qwen3_next_80b_a3b", "zlab_qwen3_6_35b_a3b": "qwen3_6_35b_a3b",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    draft: str  # its fixture
    k: int
    scheme: str
    gpu_mem: float = 600
    tp: int = 1
    more: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.draft} {self.k} {self.scheme} {self.tp} {self.more}"


ROWS = [
    *(
        Row(draft, k, scheme, **given)
        for scheme in ("replay", "per_token")
        for draft, k, given in (
            ("zlab_qwen3_6_27b", 15, {}),
            ("zlab_qwen3_6_27b", 15, {"tp": 4}),
            ("zlab_qwen3_6_27b", 7, {"more": {"prefix_caching": False}}),
            ("zlab_qwen3_5_4b", 3, {"more": {"gdn_prefill": "triton"}}),
            ("zlab_qwen3_5_4b", 1, {"more": {"kv_cache_dtype": "fp8"}}),
            ("zlab_qwen3_coder_next", 15, {"tp": 4}),
            ("zlab_qwen3_coder_next", 7, {"more": {"platform": "cpu"}}),
            ("zlab_qwen3_6_35b_a3b", 7, {"tp": 2}),
        )
    ),
]


def written(slug, folder):
    """Draft and target: the target of the fixture, with what a hybrid one's own file has besides."""
    checkpoint = next(c for c in published.published() if c.slug == slug)
    draft, there = published.materialise(checkpoint, folder / "draft"), folder / "target"
    target = published.write_target(checkpoint, there)
    if slug in HYBRID:
        of_draft, own = checkpoint.target, config(HYBRID[slug])
        text = of_draft.get("text_config", of_draft) | own.get("text_config", own)
        merged = of_draft | ({"text_config": text} if "text_config" in of_draft else text)
        (target / "config.json").write_text(json.dumps(merged))
    return str(draft), str(target)


def request(row, folder):
    draft, target = written(row.draft, folder)
    given = {"gpu_mem": row.gpu_mem, "tp": row.tp, "max_model_len": 32768, "platform": "cuda:h100"}
    return PlanRequest(draft=draft, target=target, **given | row.more)


@pytest.mark.promise("`plan` counts memory as vLLM does")
@pytest.mark.promise(
    "start line and `plan` count as the release that is imported, with either prefill backend"
)
@pytest.mark.parametrize(
    "row", [pytest.param(row, id=str(row), marks=pytest.mark.full if row.more else ()) for row in ROWS]
)
def test_plan_counts_as_vllms_planner(tmp_path, row):
    plain = request(row, tmp_path)
    (plan,) = run_plans(replace(plain, weights_gib=1), [row.k])
    theirs = plan_by_vllm(replace(plain, eagle_ext={"hybrid_state": row.scheme}), row.k)
    ours = plan.footprints[row.scheme]
    print(row, theirs, ours)
    budget = theirs["budget"]
    assert (ours.pool(budget), ours.concurrency(budget)) == (theirs["blocks"], theirs["requests"])
    assert (plan.graphs and plan.graphs.tokens) == theirs["graphs"]
    # The fixture's target has an image encoder by default, whose table is small.
    assert 0 <= theirs["tables"] - plan.tables < MIB


@pytest.fixture
def by_vllm(tmp_path):
    def run(slug, *options):
        draft, target = written(slug, tmp_path)
        words = ["plan", draft, "--target", target, "-k", "3", "--max-model-len", "32768"]
        return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, *options])

    return run


@pytest.mark.parametrize(
    ("slug", "layers"),
    [
        ("kimi_k2_5_mla", {"MLAAttentionSpec": 62}),
        ("nemotron_3_5_lightning", {"MambaSpec": 23, "FullAttentionSpec": 11}),
        ("nvidia_gpt_oss_120b_v3", {"SlidingWindowSpec": 18, "FullAttentionSpec": 19}),
    ],
)
def test_kinds_that_vllm_alone_plans(by_vllm, plan, tmp_path, slug, layers):
    options = ("--tp", "4", "--gpu-mem", "600")
    said = json.loads(by_vllm(slug, *options, "--json").stdout)
    (entry,) = said["by_vllm"]
    assert {kind.split()[0]: count for kind, count in entry["layers"].items()} == layers
    assert entry["requests"] > 1
    assert (entry["described"], said["exit_code"]) == ("h100", 0)
    message = refusal(plan("-k", "3", *options, of=tmp_path / "target"))
    assert message.endswith("What to do: name a draft\n")


def test_what_does_not_fit_is_said(by_vllm):
    result = by_vllm("redhat_llama31_8b", "--gpu-mem", "18.5")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "K = 3, by vLLM's planner on a described h100: 33 FullAttentionSpec of 16 tokens"
    assert lines[3] == "requests 0.00 of 32768 tokens fit"
    assert lines[4].startswith("- vLLM would not start: To serve at least one request")
    assert "Backends are by the packages installed here" in lines[5]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--weights-gib", "16"), "leave --weights-gib out"),
        (("--platform", "sm_80"), "--platform is 'sm_80'. Allowed: auto, cpu, cuda, cuda:h100"),
        (("--vllm", "0.31"), "a release from 0.32 on"),
        (("--vllm", "9.9"), "is installed here, not 9.9"),
        (("--tp", "3"), "divi"),  # by a rule of ours
    ],
)
def test_what_cannot_be_planned(by_vllm, options, words):
    assert words in refusal(by_vllm("redhat_llama31_8b", "--gpu-mem", "80", *options))


def test_a_target_that_vllm_cannot_build(by_vllm):
    message = refusal(by_vllm("zlab_gemma4_31b", "--gpu-mem", "80"))  # it states no image encoder
    assert "vLLM cannot plan it here: AttributeError" in message


def test_replay_is_planned_though_its_kernels_cannot_be_checked(by_vllm):
    """The self-check knows layers without memory; else vLLM's own would be planned, with 544 tokens."""
    options = ("--by-vllm", "--gpu-mem", "80", "--gdn-prefill", "triton", "--json")
    (entry,) = json.loads(by_vllm("zlab_qwen3_5_4b", *options).stdout)["by_vllm"]
    assert entry["target"].startswith("Qwen3_5EagleExt")
    assert entry["layers"]["MambaSpec of 560 tokens"] == 24


def test_a_window_of_the_option(by_vllm):
    window = ("--gpu-mem", "600", "--eagle-ext", '{"draft_window": 1024}')
    (entry,) = json.loads(by_vllm("ex0bit_qwen3_6_27b", *window, "--json").stdout)["by_vllm"]
    assert any(kind.startswith("SlidingWindowSpec") for kind in entry["layers"])
