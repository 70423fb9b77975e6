"""`vllm-eagle plan`: its tables and its JSON for one K and several, and the size of the weights."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.engine import ROOT, has_gpu
from tests.unit.cli.output import refusal
from tests.unit.plan.inputs import GIB, H200, write_shard
from vllm_eagle_ext.draft import headers
from vllm_eagle_ext.start.described import DEVICES

REST = H200[2:]


def test_the_page_shows_one_k(plan):
    page = " ".join((ROOT / "docs/usage.md").read_text(encoding="utf-8").split())
    result = plan(*H200, "--platform", "cuda:h100")
    assert (result.exit_code, result.stderr) == (0, "")
    _, *lines = result.stdout.splitlines()  # the first names the target
    assert len(lines) == 19
    assert all(len(line) <= 100 for line in lines[4:16])
    assert all(" ".join(line.split()) in page for line in lines)


def test_json(said, plan):
    planned = said(*H200, "--no-prefix-caching")
    assert planned["line"] in plan(*H200, "--no-prefix-caching").stdout
    assert not any("worst case" in text for text in planned["advice"])
    for scheme in ("per_token", "replay"):
        cost = planned[scheme]
        assert (cost["layers_per_cache_group"], cost["padding_layers"]) == (16, 0)
        fit = (cost["pool_blocks"] - 1) // cost["blocks_per_request"]
        assert cost["requests_that_fit"] == cost["requests_that_run"] == fit


@pytest.mark.parametrize("place", ["config.json", "another.json"])
def test_a_config_instead_of_a_folder(said, plan, target, place):
    path = (target / "config.json").rename(target / place)
    if place == "another.json":  # which says nothing about the files next to it
        assert "add --weights-gib" in refusal(plan(*H200, of=path))
    given = () if place == "config.json" else ("--weights-gib", "50")
    assert said(*H200, *given, of=path)["per_token"]["pages_per_request"] == 17


def test_each_is_the_plan_of_its_own(plan, said):
    doc = json.loads(plan("-k", "1,7,15", *REST, "--json").stdout)
    assert doc.keys() == {"schema_version", "plans", "exit_code"}
    assert doc["plans"] == [said("-k", k, *REST) for k in ("1", "7", "15")]
    assert [entry["request"]["k"] for entry in doc["plans"]] == [1, 7, 15]


def test_several_k(plan):
    result = plan("-k", "1,7,15", *REST, columns=80)
    lines = result.stdout.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[7:10]}
    assert rows == {
        "1": ["per_token", "450", "300", "31", "33", "432", "435"],
        "7": ["replay", "1404", "324", "22", "32", "1296", "444"],
        "15": ["replay", "2754", "348", "16", "32", "2448", "456"],
    }
    assert max(len(line) for line in lines[5:10]) <= 80
    sentences = [line for line in lines if line.startswith("K = ")]
    assert [line.split(". ")[0] for line in sentences] == ["K = 1", "K = 7", "K = 15"]


def test_advice_that_is_the_same_for_all_is_given_once(plan):
    assert plan("-k", "7,15", "--gpu-mem", "140").stdout.count("are a worst case") == 1


def test_weights_as_given(said):
    planned = said(*H200, "--weights-gib", "27.5", "--reserve-gib", "3")
    assert planned["weights"] == {"bytes": int(27.5 * GIB), "origin": "as given"}
    assert planned["kv_budget_bytes"] == int((140 * 0.92 - 27.5 - 3) * GIB - planned["rope_table_bytes"])


def test_weights_by_their_files(said, target):
    write_shard(target / "model.safetensors", {"layers.0": 3 * GIB, "mtp.layers.0": GIB})
    assert said(*H200)["weights"] == {"bytes": 3 * GIB, "origin": "by its files"}


def test_weights_by_an_index(said, plan, target):
    names = ["model-1.safetensors", "model-2.safetensors"]
    for name in (*names, "consolidated.safetensors"):
        write_shard(target / name, {name: GIB})
    index = target / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: name for name in names}}))
    assert said(*H200)["weights"]["bytes"] == 2 * GIB
    (target / names[1]).unlink()
    assert "'without 1 files'" in refusal(plan(*H200))


def test_weights_of_a_file_with_a_huge_header(said, target, monkeypatch):
    write_shard(target / "model.safetensors", {"mtp.layers.0": GIB})
    monkeypatch.setattr(headers, "HEADER_LIMIT", 8)
    assert said(*H200)["weights"]["bytes"] == (target / "model.safetensors").stat().st_size


def test_it_is_planned_with_and_named(plan, said):
    options = ("-k", "3", "--platform", "cpu", "--weights-gib", "0.5", "--reserve-gib", "0")
    planned = said(*options)
    given = said(*options, "--gpu-mem", str(planned["request"]["gpu_mem"]))
    assert given["kv_budget_bytes"] == planned["kv_budget_bytes"] > 0
    assert "of this machine), less weights" in plan(*options).stdout


def test_the_memory_of_a_described_gpu(said):
    h200 = said("-k", "3", "--platform", "cuda:h200")
    assert h200["request"]["gpu_mem"] == DEVICES["h200"].memory
    assert (h200["assumptions"]["device"], h200["assumptions"]["device_from"]) == ("sm_90", "as given")


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="reads the memory of an NVIDIA GPU")
def test_the_gpu_s_memory_is_what_vllm_counts(said):
    import torch

    gpu_mem = said("-k", "3")["request"]["gpu_mem"]
    assert gpu_mem * GIB == pytest.approx(torch.cuda.mem_get_info()[1], rel=0.02)


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
