"""The guides' recipes as far as they go without a GPU: every command line is read by the program it
calls, check and vLLM's own configs take target and draft, in the sizes they were published with."""

from __future__ import annotations

import json

import pytest
import typer
import yaml
from typer.testing import CliRunner

from tests.support import readme
from tests.support.engine import ROOT
from tests.support.published import materialise, published
from tests.support.readme import (
    ADAPTIVE,
    GATED,
    README,
    SERVING,
    USAGE,
    VOCABULARY,
    blocks,
    commands,
    engine_arguments,
    split,
)
from tests.unit.cli.output import serve_line
from tests.unit.memory.configs import GIB_27B
from tests.unit.plan.inputs import write_shard
from vllm_eagle_ext import plugin
from vllm_eagle_ext.cli import app

pytestmark = pytest.mark.promise("recipes as far as they go without a GPU")

FIXTURES = ROOT / "tests/fixtures"
GUIDES = (README, USAGE, GATED, ADAPTIVE, VOCABULARY)
SERVED = [
    pytest.param(command, id=split(command)[1][2])
    for guide in GUIDES
    for block in blocks("bash", guide)
    for command in commands(block)
    if split(command)[1][:2] == ["vllm", "serve"]
]
# Of a recipe: target's config, fixture of the draft, the folder or repository that it is called by.
RECIPES = {
    "Qwen/Qwen3.6-27B": ("hybrid/qwen3_6_27b", "zlab_qwen3_6_27b", "z-lab/Qwen3.6-27B-DFlash"),
    "baichuan-inc/Baichuan-M3-235B": (
        "dense/baichuan_m3_235b", "baichuan_m3_235b", "Baichuan-M3-235B/draft",
    ),
}  # fmt: skip


def recipe(target: str) -> list[tuple[dict[str, str], list[str]]]:
    """The commands of the block that serves the target."""
    shown = [block for page in (README, GATED) for block in blocks("bash", page)]
    block = next(b for b in shown if f"vllm serve {target} " in b)
    return [split(command) for command in commands(block)]


def command_of(target: str, *start: str) -> tuple[dict[str, str], list[str]]:
    return next(c for c in recipe(target) if c[1][: len(start)] == list(start))


@pytest.fixture(params=RECIPES)
def target(request, tmp_path, monkeypatch):
    """Its name; here, a folder of that name with its config.json and one with its draft."""
    config, slug, draft = RECIPES[request.param]
    described = json.loads((FIXTURES / f"{config}.json").read_text())["config"]
    checkpoint = next(c for c in published() if c.slug == slug)
    text = described.get("text_config", described)
    for key, value in checkpoint.target.get("text_config", checkpoint.target).items():
        text.setdefault(key, value)
    for folder in (request.param, draft):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / request.param / "config.json").write_text(json.dumps(described))
    write_shard(tmp_path / request.param / "model.safetensors", {"weights": int(GIB_27B * 2**30)})
    materialise(checkpoint, tmp_path / draft)
    monkeypatch.chdir(tmp_path)
    return request.param


def invoke(words):
    environment = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner(env=environment).invoke(app, words[1:])


@pytest.mark.parametrize("command", SERVED)
def test_vllm_reads_the_command(command, monkeypatch, tmp_path):
    _, words = split(command)
    for name in (words[2], RECIPES.get(words[2], ("", "", "draft"))[2]):
        (tmp_path / name).mkdir(parents=True)  # a name on the hub would be looked up there
    monkeypatch.chdir(tmp_path)
    args = engine_arguments(words)
    assert args.model == words[2]
    written = json.loads(words[words.index("--speculative-config") + 1])
    assert args.speculative_config == written
    assert set(written) == {"method", "model", "num_speculative_tokens"}


def test_vllm_reads_the_config_file(monkeypatch):
    """Its options as it would be started on each number of GPUs."""
    monkeypatch.chdir(ROOT)
    written = yaml.safe_load((SERVING.parent / "server.yaml").read_text())
    shown = [split(command)[1] for block in blocks("bash", SERVING) for command in commands(block)]
    served = [engine_arguments(words) for words in shown if words[:2] == ["vllm", "serve"]]
    assert [args.tensor_parallel_size for args in served] == [1, 2, 2]
    for args in served:
        assert args.model == written["model"]
        for key in (
            "max-model-len",
            "per-request-spec-decode-metrics",
            "speculative-config",
            "additional-config",
        ):
            assert getattr(args, key.replace("-", "_")) == written[key]


def test_our_commands_are_read():
    group = typer.main.get_command(app)
    shown = [split(c)[1] for page in readme.GUIDES for b in blocks("bash", page) for c in commands(b)]
    ours = [words for words in shown if words[0] == "vllm-eagle"]
    assert {words[1] for words in ours} == {
        name for name, each in group.commands.items() if not each.hidden
    }
    for words in ours:
        command = group.get_command(None, words[1])
        command.make_context(words[1], words[2:])  # an unknown or missing option would raise
        for text in (word for word in words if word.startswith("{")):
            assert json.loads(text)


def test_check_prints_what_the_recipe_serves(target):
    _, words = command_of(target, "vllm-eagle", "check")
    result = invoke(words)
    assert result.exit_code == 0
    variables, served = command_of(target, "vllm", "serve")
    forced = "".join(f"{name}={value} " for name, value in variables.items())
    model, options = serve_line(result, forced)
    assert model == target
    written = json.loads(served[served.index("--speculative-config") + 1])
    assert options["--speculative-config"] == written


def test_the_preflight_takes_target_and_draft(target, monkeypatch):
    from vllm.config import ParallelConfig

    plugin.register()
    variables, words = command_of(target, "vllm", "serve")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", variables.get("VLLM_USE_V2_MODEL_RUNNER", "0"))
    arguments = engine_arguments(words)
    arguments.skip_tokenizer_init = True  # no tokenizer at hand
    config = arguments.create_speculative_config(arguments.create_model_config(), ParallelConfig())
    assert "EagleExt" in config.draft_model_config.architecture
    assert config.num_speculative_tokens == arguments.speculative_config["num_speculative_tokens"]


@pytest.mark.parametrize("target", ["Qwen/Qwen3.6-27B"], indirect=True)
def test_the_first_screen_s_figures_are_the_plan_s(target):
    """Requests that fit on one H100 with the draft."""
    page = " ".join(README.read_text().split())
    words = [RECIPES[target][2], "--target", target, "-k", "15"]
    words += ["--max-model-len", "32768", "--vllm", "0.33", "--platform", "cuda:h100", "--json"]
    (plan,) = json.loads(invoke(["vllm-eagle", "plan", *words]).stdout)["plans"]
    fit = {name: plan[name]["requests_that_fit"] for name in ("replay", "per_token")}
    said = "{replay} requests of 32,768 tokens fit instead of {per_token} in plain vLLM"
    assert said.format(**fit) in page


def test_the_first_screen_s_throughput_is_the_virtual_clock_s():
    clock = ROOT / "benchmarks/results/virtual_clock/0.32.0-H100-1024.json"
    cells = [cell for cell in json.loads(clock.read_text())["cells"] if cell["clients"] == 32]
    best = {
        scheme: max(
            cell["tokens_per_s"]
            for cell in cells
            if (cell["scheme"], cell["draft"]) == (scheme, "z-lab")
        )
        for scheme in ("replay", "per_token")
    }
    said = f"get {best['replay']:,.0f} tokens/s instead of {best['per_token']:,.0f} (modelled"
    assert said in " ".join(README.read_text().split())


@pytest.mark.parametrize("target", ["Qwen/Qwen3.6-27B"], indirect=True)
def test_the_table_of_who_gains_is_the_plan_s(target):
    page = (ROOT / "docs/hybrid.md").read_text(encoding="utf-8")
    assert "-k 3,7,15 \\\n  --max-model-len 8192 --vllm 0.33 --platform cuda:h100\n" in page
    for length in (8192, 32768):
        words = [RECIPES[target][2], "--target", target, "-k", "3,7,15"]
        words += ["--max-model-len", str(length), "--vllm", "0.33", "--platform", "cuda:h100", "--json"]
        plans = json.loads(invoke(["vllm-eagle", "plan", *words]).stdout)["plans"]
        for title, key, unit in (
            ("state per request, MiB", "state_bytes", 2**20),
            (f"requests of {length:,} tokens that fit", "requests_that_fit", 1),
        ):
            cells = (
                f"{plan['per_token'][key] / unit:,.0f}→{plan['replay'][key] / unit:,.0f}"
                for plan in plans
            )
            assert f"| {title} | {' | '.join(cells)} |\n" in page
