"""Copies of drafts for vLLM without this package."""

from __future__ import annotations

import json
import os
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tests.support import published
from tests.support.checkpoints import tiny_draft
from tests.support.drafts import OURS, valid_draft, write
from tests.unit.draft.rules.changes import ANGELSLIM, IDS, TOP_IDS, as_qwen3, key, no_key
from tests.unit.start.configs import speculative_config
from vllm_eagle_ext.cli import app
from vllm_eagle_ext.draft.stock_gaps import stock_gaps
from vllm_eagle_ext.errors import EagleExtError, UnsupportedDraftError
from vllm_eagle_ext.start.check import CheckRequest, run_check
from vllm_eagle_ext.start.convert import conversion_of
from vllm_eagle_ext.start.convert import write as write_copy

FORMATS = ("own", "speculators")


def checked(draft: Path, target: Path):
    return run_check(CheckRequest(draft=str(draft), target=str(target), options={}, platform="cuda"))


def run(draft, target, out, *options):
    given = ["convert", str(draft), str(out), "--target", str(target), *options]
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, given)


def five(folder: Path, **changes) -> Path:
    return tiny_draft(folder, num_aux=5, **changes)


@pytest.mark.parametrize("form", FORMATS)
def test_vllm_reads_of_a_copy_what_this_package_reads_of_the_draft(target, tmp_path, form):
    """By vLLM's own config classes, with this package switched off."""
    draft = five(tmp_path / "draft", rope_theta=7.5e5, eagle_config={
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4, 5], "norm_output": True, "fc_norm": True,
    }, norm_output=None, fc_norm=None)  # fmt: skip
    result = run(draft, target, tmp_path / "copy", "--format", form)
    assert result.exit_code == 0, result.output
    off = {"options": {"enabled": False}}
    stock, ours, blind = (
        speculative_config(target, folder, **given).draft_model_config.hf_config
        for folder, given in ((tmp_path / "copy", off), (draft, {}), (draft, off))
    )
    names = (
        "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states", "norm_output", "fc_norm",
        "norm_before_fc", "norm_before_residual", "rope_parameters", "head_dim", "hidden_act",
        "num_key_value_heads", "num_attention_heads", "hidden_size", "intermediate_size", "rms_norm_eps",
        "vocab_size", "draft_vocab_size", "num_hidden_layers",
    )  # fmt: skip
    # vLLM takes a flag that is missing for false.
    assert [getattr(stock, name, False) for name in names] == [getattr(ours, name) for name in names]
    assert stock.eagle_aux_hidden_state_layer_ids == [2, 3, 4, 5, 6]
    assert stock.rope_parameters["rope_theta"] == 7.5e5
    assert not getattr(blind, "eagle_aux_hidden_state_layer_ids", None)


@pytest.mark.parametrize("family", OURS)
def test_each_family(target, tmp_path, family):
    """A copy is read as the draft, and vLLM gets nothing of it wrong; others need none, or have none."""
    expected = {
        "gated": "gate", "quantised": "quantised", "mla": "nested", "bin": "as safetensors",
        "no_aux": "aux states", "p-eagle": None,
        "speculators": None, "dflash": None, "dflash-speculators": None,
    }  # fmt: skip
    folder = write(valid_draft(family), tmp_path / "draft")
    result = checked(folder, target)
    if expected.get(family):
        with pytest.raises(EagleExtError, match=expected[family]):
            conversion_of(result)
        return
    conversion = conversion_of(result)
    assert (conversion is None) == (family in expected)
    if conversion:
        write_copy(conversion, tmp_path / "copy")
        again = checked(tmp_path / "copy", target)
        assert stock_gaps(again.inspection.case) == []
        assert conversion_of(again) is None
        assert read(again.inspection.spec) == read(result.inspection.spec)


def read(spec):
    """What a copy must have in common with the draft."""
    names = ("heads", "layers", "rope", "vocabulary", "num_layers", "target_hidden_size")
    flags = {name: flag.value for name, flag in spec.flags.items()}
    return flags, spec.aux_layers.layer_ids, [getattr(spec, name) for name in names]


@pytest.mark.parametrize("checkpoint", published.published(), ids=lambda checkpoint: checkpoint.slug)
def test_published_drafts(tmp_path, checkpoint):
    """No copy of a published one is read otherwise than the draft."""
    draft, target, copy = (tmp_path / name for name in ("draft", "target", "copy"))
    for folder in (draft, target, copy):
        folder.mkdir()
    published.materialise(checkpoint, draft)
    try:
        result = checked(draft, published.write_target(checkpoint, target))
    except UnsupportedDraftError:
        return
    os.link(draft / "model.safetensors", copy / "model.safetensors")
    for in_speculators_format in (False, True):
        try:
            conversion = conversion_of(result, in_speculators_format=in_speculators_format)
        except UnsupportedDraftError:
            continue
        if conversion is None:
            assert stock_gaps(result.inspection.case) == []
            continue
        (copy / "config.json").write_text(json.dumps(conversion.config))
        assert read(checked(copy, target).inspection.spec) == read(result.inspection.spec)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("native", [key(IDS, [2, 4, 5])], "only acceptance under an option"),
        ("native", [no_key("eagle_config"), key(ANGELSLIM, [3, 1, 2])], "ascending order"),
        ("dflash", [key("input_embedding_scale", 8.0)], "input_embedding_scale"),
    ],
)
def test_refused_with_the_reason(target, tmp_path, family, changes, words):
    draft = valid_draft(family)
    for change in changes:
        change(draft)
    out = tmp_path / "copy"
    result = run(write(draft, tmp_path / "draft"), target, out)
    assert (result.exit_code, out.exists()) == (1, False)
    assert words in result.stdout
    assert "serve it with this package" in result.stdout
    assert "\\n" not in result.stdout


@pytest.mark.parametrize(
    ("family", "change", "status", "words"),
    [
        ("native", key("hidden_size", 200), 1, "run it, and correct what it names"),
        ("native", None, 2, "save its weights as safetensors"),
    ],
)
def test_what_can_be_mended_is_told(target, tmp_path, family, change, status, words):
    draft = valid_draft(family)
    if change:
        change(draft)
    folder = write(draft, tmp_path / "draft")
    if not change:
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    result = run(folder, target, tmp_path / "copy")
    assert result.exit_code == status
    assert words in " ".join(result.output.split())
    assert "with this package" not in result.output


def test_only_files_with_the_draft_s_tensors_are_taken(target, tmp_path):
    draft, secret = five(tmp_path / "draft"), tmp_path / "secret"
    secret.write_text("not the draft's")
    (draft / "x.safetensors.index.json").symlink_to(secret)
    assert run(draft, target, tmp_path / "copy").exit_code == 0
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {"config.json", "model.safetensors"}


def test_what_vllm_serves_as_it_is_stays(target, tmp_path):
    draft = valid_draft("native")
    for change in (no_key("eagle_config"), key(TOP_IDS, [2, 3, 4])):
        change(draft)
    folder, out = write(draft, tmp_path / "draft"), tmp_path / "copy"
    result = run(folder, target, out)
    assert (result.exit_code, out.exists()) == (0, False)
    assert "nothing was written" in result.stdout
    named = run(folder, target, out, "--format", "speculators", "-k", "5")  # which it does not yet
    words = named.stdout.splitlines()[-1].split()
    assert words[:3] == ["vllm", "serve", str(out)]
    assert not {str(target), "--speculative-config"} & set(words)
    config = json.loads((out / "config.json").read_text())
    block = config["speculators_config"]
    assert block["proposal_methods"][0]["speculative_tokens"] == 5
    assert block["verifier"] == {"name_or_path": str(target), "architectures": ["LlamaForCausalLM"]}


def test_weights_are_linked_and_else_copied(target, tmp_path, monkeypatch):
    draft, copies = five(tmp_path / "draft"), [tmp_path / "linked", tmp_path / "copied"]
    assert "model.safetensors: a hard link" in run(draft, target, copies[0]).stdout

    def no_links(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", no_links)
    assert "model.safetensors: copied" in run(draft, target, copies[1]).stdout
    linked, copied = ((folder / "model.safetensors") for folder in copies)
    assert linked.samefile(draft / "model.safetensors")
    assert not copied.samefile(linked)
    assert copied.read_bytes() == linked.read_bytes()


def sharded(draft: Path, front: str = "model") -> dict[str, list[str]]:
    """Write the draft's weights to two files; return the names of tensors in each."""
    tensors = load_file(draft / "model.safetensors")
    (draft / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {
        f"{front}-00001-of-00002.safetensors": names[::2],
        f"{front}-00002-of-00002.safetensors": names[1::2],
    }
    for shard, own in shards.items():
        save_file({name: tensors[name] for name in own}, draft / shard, metadata={"format": "pt"})
    index = {"weight_map": {name: shard for shard, own in shards.items() for name in own}}
    (draft / f"{front}.safetensors.index.json").write_text(json.dumps(index))
    return shards


@pytest.mark.parametrize("front", ["model", "consolidated"])
def test_shards_have_an_index(target, tmp_path, front):
    draft = five(tmp_path / "draft")
    tensors = load_file(draft / "model.safetensors")
    shards, index_name = sharded(draft, front), f"{front}.safetensors.index.json"
    for form, layer in zip(FORMATS, ("midlayer.", "layers.0."), strict=True):
        out = tmp_path / form
        assert run(draft, target, out, "--format", form).exit_code == 0
        assert {path.name for path in out.iterdir()} == {*shards, "config.json", index_name}
        index = json.loads((out / index_name).read_text())
        held = {shard: load_file(out / shard) for shard in shards}
        assert index["weight_map"] == {name: shard for shard, own in held.items() for name in own}
        size = sum(t.numel() * t.element_size() for own in held.values() for t in own.values())
        assert index["metadata"]["total_size"] == size
        new = {name: tensor for own in held.values() for name, tensor in own.items()}
        assert new.keys() == {name.replace("midlayer.", layer) for name in tensors}
        assert all(new[name.replace("midlayer.", layer)].equal(old) for name, old in tensors.items())


def test_nothing_is_overwritten(target, tmp_path):
    draft, out = five(tmp_path / "draft"), tmp_path / "copy"
    out.mkdir()
    assert run(draft, target, out).exit_code == 0  # an empty folder
    before = (out / "config.json").read_text()
    again = run(draft, target, out, "--format", "speculators")
    assert again.exit_code == 2
    assert "Allowed: a new or an empty folder" in again.stderr
    assert (out / "config.json").read_text() == before
    assert run(draft, target, draft).exit_code == 2
    assert run(draft, target, out / "config.json").exit_code == 2


@contextmanager
def room_of(size: int):
    """Let no file become longer, as where a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("is_there", [False, True])
def test_nothing_stays_of_a_copy_that_cannot_be_finished(target, tmp_path, is_there):
    draft, out = five(tmp_path / "draft"), tmp_path / "copy"
    shards = sharded(draft)
    if is_there:
        out.mkdir()
    sizes = [(draft / shard).stat().st_size for shard in shards]
    assert sizes[0] < sizes[1]
    with room_of(sizes[1] - 1):  # the first shard is written whole
        failed = run(draft, target, out, "--format", "speculators")
    assert failed.exit_code == 2
    assert "OUT cannot be written" in failed.stderr
    assert out.exists() == is_there
    assert not is_there or not any(out.iterdir())
    assert run(draft, target, out, "--format", "speculators").exit_code == 0


@pytest.mark.parametrize("name", ["draft_id_to_target_id", "model.d2t"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_map_of_another_name_gets_vllms(target, tmp_path, name, form):
    """Stock drops the first without a word, and stops at the second."""
    draft, out = five(tmp_path / "draft"), tmp_path / "copy"
    tensors = load_file(draft / "model.safetensors")
    published = {**tensors, name: tensors["d2t"]}
    del published["d2t"]
    save_file(published, draft / "model.safetensors", metadata={"format": "pt"})
    result = run(draft, target, out, "--format", form)
    assert result.exit_code == 0, result.output
    assert "copied with other names of tensors" in result.stdout
    new = load_file(out / "model.safetensors")
    assert new.keys() == {key.replace("midlayer.", "layers.0.") for key in tensors}
    assert new["d2t"].equal(tensors["d2t"])
    assert stock_gaps(checked(out, target).inspection.case) == []


@pytest.mark.parametrize(
    "changes",
    [
        [key(IDS, [4, 1, 2]), key("eagle_config.use_last_layernorm", True)],
        [as_qwen3, key("layer_types", ["sliding_attention"]), key("sliding_window", 64)],
    ],
    ids=["order", "windows"],
)
def test_a_refusal_names_the_format_that_has_a_copy(target, tmp_path, changes):
    draft = valid_draft("native")
    for change in changes:
        change(draft)
    folder = write(draft, tmp_path / "draft")
    refused = run(folder, target, tmp_path / "own")
    assert refused.exit_code == 1
    assert "add --format speculators" in refused.stdout
    assert run(folder, target, tmp_path / "other", "--format", "speculators").exit_code == 0
    assert stock_gaps(checked(tmp_path / "other", target).inspection.case) == []
