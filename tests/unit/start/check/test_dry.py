"""The second stage of `vllm-eagle check`: what vLLM says of the command, in a process of its own."""

from __future__ import annotations

import json
import os
import shlex

import pytest
from typer.testing import CliRunner

from tests.support import warm_child
from tests.support.checkpoints import tiny_draft, write_target
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.start import dry

START_CHILD = dry.start_child


@pytest.fixture
def cpu(target):
    def run(draft, *words, target=target):
        arguments = ["check", str(draft), "--target", str(target), "--platform", "cpu", *words]
        return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, arguments)

    return run


@pytest.fixture
def real(monkeypatch):
    """The child itself, not a fork of a warm one."""
    monkeypatch.setattr(dry, "start_child", START_CHILD)


def no_traceback(result):
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.usefixtures("real")
def test_a_cold_child_writes_nothing_beside_its_folder(cpu, draft, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.chdir(home)
    monkeypatch.setattr(dry, "WALL_S", 300)  # of a machine that other tests share
    (home / "vllm.py").write_text("raise SystemExit('not vLLM')")
    before = {path.name for path in draft.iterdir()}
    result = cpu(draft)
    assert result.exit_code == 0, result.output
    assert [path.name for path in home.rglob("*")] == ["vllm.py"]
    assert {path.name for path in draft.iterdir()} == before


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [
        ("WALL_S", 0.5, "it took more than 0.5 s"),
        ("RESIDENT", 2**25, "GiB of memory"),
        ("_MOST_ANSWER", 16, "it wrote more than 0 MiB"),
    ],
)
def test_limits(cpu, draft, monkeypatch, limit, value, words):
    monkeypatch.setattr(dry, limit, value)
    result = cpu(draft)
    assert result.exit_code == 2
    assert words in result.output
    assert "the engine was not asked" in result.output
    assert "Would be served, by its files" in result.output
    no_traceback(result)


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "raise ImportError('libcuda.so.1: cannot open\\x1b[31m')",
            "libcuda.so.1: cannot open\\x1b[31m",
        ),
        ("raise RuntimeError('broken')", "RuntimeError: broken"),
        ("import os; os._exit(7)", "it ended with status 7"),
        ("import os; os.kill(os.getpid(), 9)", "it ended with status -9"),
        ("import resource, os; os.kill(os.getpid(), 24)", "CPU time"),
        ("raise SystemExit('stop')", "it ended with status 1"),
    ],
)
def test_a_vllm_that_breaks(cpu, draft, tmp_path, monkeypatch, source, words):
    broken = tmp_path / "broken/vllm"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text(source)
    path = os.pathsep.join([str(broken.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    monkeypatch.setenv("PYTHONPATH", path)
    result = cpu(draft)
    assert result.exit_code == 2
    assert words in result.output
    no_traceback(result)
    assert "\x1b" not in result.output


def test_without_vllm(cpu, draft, monkeypatch):
    monkeypatch.setattr(dry, "installed_vllm", lambda: None)
    result = cpu(draft)
    assert result.exit_code == 3
    assert "the engine was not asked: vLLM is not installed here" in result.output


def test_quick_asks_nobody(cpu, draft, monkeypatch):
    monkeypatch.setattr(dry, "start_child", None)
    said = json.loads(cpu(draft, "--quick", "--json").stdout)
    assert (said["verdict"], said["exit_code"]) == ("not asked", 3)
    assert said["engine"] == {
        "verdict": "not asked", "why": "--quick", "described": None, "findings": [], "settled": None,
    }  # fmt: skip


@pytest.mark.parametrize("words", [(), ("--", "--trust-remote-code")])
def test_remote_code_is_not_run(cpu, draft, tmp_path, words):
    remote = write_target(
        tmp_path / "remote", model_type="stranger", auto_map={"AutoConfig": "configuration.Stranger"}
    )
    mark = tmp_path / "run"
    (remote / "configuration.py").write_text(f"open({str(mark)!r}, 'w')")
    result = cpu(draft, *words, target=remote)
    assert result.exit_code == 2, result.output
    assert "needs code of the checkpoint" in result.output
    assert not mark.exists()
    no_traceback(result)


def test_vllms_error_is_the_last_finding(cpu, draft):
    said = json.loads(cpu(draft, "--speculative", '{"num_steps": 3}', "--json").stdout)
    assert (said["verdict"], said["exit_code"]) == ("refused", 1)
    last = said["findings"][-1]
    assert (last["rule"], last["field"]) == ("vllm_says", "speculative_config.num_steps")
    assert last["allowed"] == "vLLM says: num_steps: Unexpected keyword argument"
    assert last["remedy"].startswith('write "num_speculative_tokens"')


def test_a_hostile_config_is_told_of_in_bounds(cpu, tmp_path):
    draft = tiny_draft(tmp_path / "draft", use_cache="\x1b[31m\nerror forged: " + "x" * 100_000)
    result = cpu(draft, "--all")
    assert result.exit_code == 1
    assert all(line.isprintable() for line in result.output.split("\n"))
    assert not any(line.startswith("error forged") for line in result.output.split("\n"))
    assert len(result.output) < 20_000


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (("--tp", "2"), ("--tensor_parallel_size=4",)),
        (("--tp", "2"), ("-tp", "4")),
        (("--max-model-len", "64"), ("--max-model", "32")),
        ((), ("--speculative-config.method", "eagle")),
        (("--eagle-ext", '{"strict": false}'), ("--additional-config", "{}")),
    ],
)
def test_one_place_for_an_option(cpu, draft, ours, theirs):
    result = cpu(draft, *ours, "--", *theirs)
    assert result.exit_code == 2
    assert "named twice" in result.output


def test_words_that_vllms_parser_refuses(cpu, draft):
    result = cpu(draft, "--", "--no-such-option")
    assert result.exit_code == 2
    assert "unrecognized arguments: --no-such-option" in result.output
    no_traceback(result)


def test_the_printed_command_is_the_one_that_was_judged(cpu, draft, monkeypatch):
    judged = []

    def start(request, folder, settings):
        judged.append(request.words)
        return warm_child.start_warmly(request, folder, settings)

    monkeypatch.setattr(dry, "start_child", start)
    result = cpu(draft, "--max-model-len", "128", "--", "--kv-cache-dtype", "fp8", "--no-enable-prefix")
    words = shlex.split(result.output.splitlines()[-1])
    assert words[words.index("serve") + 1 :] == judged[0]
    assert words[-3:] == ["--kv-cache-dtype", "fp8", "--no-enable-prefix"]


def test_the_engine_wins(cpu, draft, tmp_path):
    """Transformers' class hands out hidden states, vLLM's does not: only the words after -- tell."""
    target = write_target(tmp_path / "stablelm", architectures=["StableLmForCausalLM"])
    assert cpu(draft, target=target).exit_code == 1
    assert cpu(draft, "--", "--model-impl", "transformers", target=target).exit_code == 0


@pytest.mark.parametrize("platform", ["cuda", "cuda:h200"])
def test_a_described_gpu(cpu, draft, platform):
    said = json.loads(cpu(draft, "--platform", platform, "--json").stdout)
    assert (said["verdict"], said["engine"]["settled"]["runner"]) == ("served", "v2")
    assert said["engine"]["described"] == (platform.partition(":")[2] or "h100")
    backend = ("--speculative", '{"attention_backend": "NOPE"}')
    said = json.loads(cpu(draft, "--platform", platform, *backend, "--json").stdout)
    assert said["verdict"] == "refused"
    assert "Unknown attention backend: 'NOPE'" in said["findings"][-1]["allowed"]


def test_a_b200_is_not_described_without_its_kernels_package(cpu, draft, monkeypatch):
    monkeypatch.setattr(dry, "lacks_packages", lambda device: {"b200": "flashinfer"}[device])
    result = cpu(draft, "--platform", "cuda:b200")
    assert result.exit_code == 3
    assert "by flashinfer, which is not installed here" in result.output
