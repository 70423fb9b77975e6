from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.support import published
from tests.support.checkpoints import tiny_draft
from tests.unit.hybrid.test_memory import config
from vllm_eagle_ext.checkpoint import headers
from vllm_eagle_ext.cli import app

MIB, GIB = 2**20, 2**30
KEYS = {
    "request", "max_model_len", "weights", "draft_weights_bytes", "kv_budget_bytes", "slots", "replay",
    "line", "advice", "exit_code",
}  # fmt: skip


def write_config(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def write_shard(path, tensors):
    """A safetensors file of these byte counts, without its bytes on the disk."""
    entries, end = {}, 0
    for name, size in tensors.items():
        entries[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)


@pytest.fixture
def target(tmp_path):
    return write_config(tmp_path / "target", config("qwen3_6_27b"))


@pytest.fixture
def plan(target):
    def run(*options, of=target, columns=100):
        arguments = ["plan", "--target", str(of), *options]
        environment = {"COLUMNS": str(columns), "TERM": "dumb", "NO_COLOR": "1"}
        return CliRunner(env=environment).invoke(app, arguments)

    return run


@pytest.fixture
def said(plan):
    """What `--json` says."""

    def run(*options, **where):
        result = plan(*options, "--json", **where)
        found = json.loads(result.stdout)
        assert result.exit_code == found["exit_code"]
        assert found.keys() == KEYS
        return found

    return run


H200 = ("-k", "15", "--gpu-mem", "140", "--max-model-len", "32768")


def test_table(plan, target):
    result = plan(*H200)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == f"{target}: 48 gated delta nets, 16 full-attention layers"
    assert lines[1] == "weights  50.1 GiB, estimated from config.json within 2%, no weights at hand"
    assert lines[2].startswith("KV cache 76.7 GiB: 0.92 of 140 GiB, less weights and 2 GiB assumed")
    table = lines[4:14]
    assert all(len(line) <= 100 for line in table)
    cells = {line[:52].strip(): line[52:].split() for line in table}
    rows = {name: found[-2:] for name, found in cells.items()}
    assert rows["per request"] == ["slots", "replay"]
    assert rows["state pages"] == ["17", "2"]
    assert rows["recurrent state, MiB"] == ["2754", "348"]
    assert rows["records in it, MiB"] == ["0", "24"]
    assert rows["keys and values of 32768 tokens, MiB"] == ["2052", "2088"]
    assert rows["requests of 32768 tokens that fit"] == ["16", "32"]
    assert rows["recurrent state moved per step, MiB"] == ["2448", "456"]
    assert "3.38 (864)  3.62 (928)" in result.stdout
    assert lines[14] == (
        "Recurrent state: replay, 2 pages per request (slots: 17): 348 MiB instead of 2754 MiB per "
        "request, records 24 MiB of it; 32 requests of 32768 tokens fit instead of 16."
    )
    assert lines[15] == (
        "- Shorter requests show it more: of 8192 tokens, 90 run at a time instead of 23."
    )


def test_json(said, plan):
    found = said(*H200, "--no-prefix-caching")
    assert found["slots"]["pages_per_request"] == 16
    assert found["slots"]["state_bytes"] == 2592 * MIB
    assert found["replay"]["pages_per_request"] == 1
    assert found["replay"]["page_bytes"] * 48 == found["replay"]["state_bytes"] == 174 * MIB
    assert found["line"] == plan(*H200, "--no-prefix-caching").stdout.splitlines()[14]
    for way in ("slots", "replay"):
        cost = found[way]
        fit = (cost["pool_blocks"] - 1) // cost["blocks_per_request"]
        assert cost["requests_that_fit"] == cost["requests_that_run"] == fit


def test_the_length_is_the_target_s_own_unless_given(said):
    assert said("-k", "7", "--gpu-mem", "140")["max_model_len"] == 262144


@pytest.mark.parametrize("place", ["config.json", "another.json"])
def test_a_config_instead_of_a_folder(said, target, place):
    write_shard(target / "model.safetensors", {"weight": GIB})
    path = (target / "config.json").rename(target / place)
    found = said(*H200, of=path)
    assert found["slots"]["pages_per_request"] == 17
    assert found["weights"]["origin"].startswith("by its" if place == "config.json" else "estimated")


# weights


def test_weights_as_given(said):
    found = said(*H200, "--weights-gib", "27.5", "--reserve-gib", "3")
    assert found["weights"] == {"bytes": int(27.5 * GIB), "origin": "as given"}
    assert found["kv_budget_bytes"] == int((140 * 0.92 - 27.5 - 3) * GIB)


def test_weights_by_their_files(said, target):
    write_shard(target / "model.safetensors", {"layers.0": 3 * GIB, "mtp.layers.0": GIB})
    assert said(*H200)["weights"] == {"bytes": 3 * GIB, "origin": "by its files"}


def test_weights_by_an_index(said, target):
    names = ["model-1.safetensors", "model-2.safetensors"]
    for name in (*names, "consolidated.safetensors"):
        write_shard(target / name, {name: GIB})
    index = target / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: name for name in names}}))
    assert said(*H200)["weights"]["bytes"] == 2 * GIB
    (target / names[1]).unlink()
    found = said(*H200)["weights"]
    assert found["bytes"] == pytest.approx(2 * 26.896e9, rel=0.001)
    assert found["origin"].endswith("1 of its files are missing")


def test_weights_of_a_file_with_a_huge_header(said, target, monkeypatch):
    write_shard(target / "model.safetensors", {"mtp.layers.0": GIB})
    monkeypatch.setattr(headers, "HEADER_LIMIT", 8)
    assert said(*H200)["weights"]["bytes"] == (target / "model.safetensors").stat().st_size


def test_ranks_share(said):
    one, two = said(*H200), said(*H200, "--tp", "2")
    assert two["kv_budget_bytes"] - one["kv_budget_bytes"] == pytest.approx(
        one["weights"]["bytes"] / 2, abs=2
    )
    assert two["replay"]["state_bytes"] == pytest.approx(one["replay"]["state_bytes"] / 2, rel=0.01)


# a draft


def test_a_dflash_draft(said, tmp_path):
    checkpoint = next(c for c in published.published() if c.slug == "specforge_qwen3_6_27b_dflash")
    draft = published.materialise(checkpoint, tmp_path / "draft")
    without, found = said(*H200), said(*H200, "--draft", str(draft))
    size = sum(path.stat().st_size for path in draft.glob("*.safetensors"))
    assert found["draft_weights_bytes"] == size
    assert without["kv_budget_bytes"] - found["kv_budget_bytes"] == pytest.approx(size, abs=2)
    tokens, page = (found["slots"][key] for key in ("attention_block_tokens", "page_bytes"))
    window, whole = -(-(2047 + 2 * 8192) // tokens) + 1, -(-32768 // tokens)
    more = found["slots"]["attention_bytes"] - without["slots"]["attention_bytes"]
    assert more == (4 * window + whole) * page


def test_a_draft_is_shown(plan, tmp_path):
    lines = plan(*H200, "--draft", str(tiny_draft(tmp_path / "draft"))).stdout.splitlines()
    assert lines[2] == "draft    0.00 GiB, 1 attention layers"


@pytest.mark.parametrize("slug", ["kimi_k2_5_mla", "kimi_k3_dspark"])
def test_a_draft_of_another_kind(plan, tmp_path, slug):
    checkpoint = next(c for c in published.published() if c.slug == slug)
    draft = published.materialise(checkpoint, tmp_path / "draft")
    message = refusal(plan(*H200, "--draft", str(draft)))
    assert "--draft" in message or "of the draft's config.json" in message


# advice


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
    assert "0 requests of 262144 tokens fit instead of 0." in result.stdout


def test_the_length_that_is_advised_fits(plan):
    advice = plan("-k", "15", "--gpu-mem", "60").stdout
    length = int(advice.split("use --max-model-len ")[1].split()[0])
    assert plan("-k", "15", "--gpu-mem", "60", "--max-model-len", str(length)).exit_code == 0
    assert plan("-k", "15", "--gpu-mem", "60", "--max-model-len", str(length + 1)).exit_code == 1


def test_only_replay_fits(said):
    found = said("-k", "15", "--gpu-mem", "60", "--max-model-len", "8192")
    assert found["slots"]["requests_that_fit"] == 0 < found["replay"]["requests_that_fit"]
    assert "With slots vLLM would not start here; with replay it does." in found["advice"]


@pytest.mark.parametrize(("k", "is_small"), [("1", True), ("2", True), ("3", False)])
def test_few_drafts(said, k, is_small):
    advice = said("-k", k, "--gpu-mem", "140", "--max-model-len", "4096")["advice"]
    assert any(text.startswith(f"K = {k} is small") for text in advice) == is_small


def test_prefix_caching_costs_a_page(said):
    short = ("-k", "15", "--gpu-mem", "140", "--max-model-len", "1024")
    advice = said(*short)["advice"]
    fit = said(*short, "--no-prefix-caching")["replay"]["requests_that_fit"]
    assert any(f"1 page instead of 2: {fit} requests would fit" in text for text in advice)


def test_more_fit_than_run(said):
    found = said("-k", "15", "--gpu-mem", "140", "--max-model-len", "1024", "--max-num-seqs", "8")
    assert found["replay"]["requests_that_run"] == 8
    assert any("requests fit and 8 run" in text for text in found["advice"])


def test_a_cpu(said):
    found = said("-k", "7", "--gpu-mem", "140", "--max-model-len", "1024", "--cpu")
    assert (found["replay"]["pages_per_request"], found["slots"]["pages_per_request"]) == (3, 9)
    assert found["slots"]["attention_block_tokens"] % 128 == 0
    assert any("use --no-prefix-caching" in text for text in found["advice"])


def test_fp8_keys_and_values(said):
    bf16, fp8 = said(*H200), said(*H200, "--kv-dtype", "fp8")
    ratio = fp8["replay"]["attention_bytes"] / bf16["replay"]["attention_bytes"]
    assert ratio == pytest.approx(0.5, rel=0.03)


# exit code 2


def refusal(result):
    assert result.exit_code == 2
    assert result.stdout == ""
    return result.stderr


def test_no_target(plan, tmp_path):
    assert "--target is" in refusal(plan(*H200, of=tmp_path / "nothing"))


def test_a_folder_without_a_config(plan, target):
    (target / "config.json").unlink()
    message = refusal(plan(*H200))
    assert "Allowed: a config.json, or a folder or repository with one" in message


def test_a_target_without_gated_delta_nets(plan, tmp_path):
    llama = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    message = refusal(plan(*H200, of=write_config(tmp_path / "llama", llama)))
    assert message.startswith("vllm-eagle-ext: linear_num_key_heads of the target's config.json is None")
    assert "What to do: name a Qwen3-Next, Qwen3.5 or Qwen3.6 target" in message
    assert message.count("\n") == 1


def test_a_target_whose_weights_cannot_be_estimated(plan, tmp_path):
    vague = write_config(tmp_path / "vague", config("qwen3_6_27b", vocab_size=None))
    assert "What to do: say --weights-gib" in refusal(plan(*H200, of=vague))
    assert plan(*H200, "--weights-gib", "50", of=vague).exit_code == 0


def test_a_target_without_a_length(plan, tmp_path):
    short = write_config(tmp_path / "short", config("qwen3_6_27b", max_position_embeddings=None))
    assert "--max-model-len is None" in refusal(plan("-k", "7", "--gpu-mem", "140", of=short))


def test_json_of_what_cannot_be_read(plan, tmp_path):
    result = plan(*H200, "--json", of=tmp_path / "nothing")
    found = json.loads(result.stdout)
    assert result.exit_code == found["exit_code"] == 2
    assert "What to do: " in found["error"]


@pytest.mark.parametrize(
    "options",
    [
        ("--kv-dtype", "nvfp4"), ("--tp", "3"), ("--tp", "0"), ("-k", "0"), ("--gpu-mem", "0"),
        ("--gpu-memory-utilization", "2"), ("--weights-gib", "-1"), ("--max-num-seqs", "0"),
    ],
)  # fmt: skip
def test_bad_options(plan, options):
    name = {"--tp": "tensor_parallel_size"}.get(options[0], options[0])
    message = refusal(plan(*H200, *options))
    assert name in message or options[0] in message


# the program


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_little_is_imported(target, options):
    script = (
        "import sys\n"
        "from vllm_eagle_ext.cli import app\n"
        "try:\n"
        f"    app({['plan', '--target', str(target), *H200, *options]!r})\n"
        "except SystemExit as exit:\n"
        "    heavy = {'torch', 'vllm', 'transformers', 'numpy', 'safetensors', 'huggingface_hub'}\n"
        "    print(exit.code, sorted(heavy & sys.modules.keys()), file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.stderr == "0 []\n"


def test_help_names_the_exit_codes():
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["plan", "--help"])
    assert result.exit_code == 0
    assert "Exits with 0 if a request fits with replay, with 1 if none does" in result.stdout
