"""What a draft is: every spelling of a config gives the same spec."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.checkpoints import HIDDEN, LAYERS, VOCAB
from tests.support.drafts import LAYER, valid_draft, write
from vllm_eagle_ext.draft.draft_config import flatten


@pytest.mark.parametrize(
    ("block", "k"),
    [
        pytest.param(
            {"proposal_methods": [{"speculative_tokens": 5}, {"speculative_tokens": 7}]}, 5, id="k"
        ),
        pytest.param({"proposal_methods": [{"proposal_type": "greedy"}]}, None, id="method_without"),
        pytest.param({"proposal_methods": []}, None, id="no_method"),
        pytest.param({}, None, id="empty"),
        pytest.param(None, None, id="null"),
    ],
)
def test_k_of_training(spec_of, block, k):
    draft = valid_draft("speculators")
    draft.config["speculators_config"] = block
    assert spec_of(draft).trained_k == k
    assert spec_of(valid_draft("native")).trained_k is None


def test_root_keys_of_speculators_win_unless_null():
    layer = {"model_type": "llama", "vocab_size": 8, "hidden_size": 4}
    config = {
        "speculators_model_type": "eagle3",
        "model_type": "speculators",
        "vocab_size": 16,
        "hidden_size": None,
        LAYER: layer,
    }
    flat = flatten(config)
    assert (flat["vocab_size"], flat["hidden_size"], flat["model_type"]) == (16, 4, "llama")
    published = {"vocab_size": 16, LAYER: layer}
    assert flatten(published) is published


def test_presence_in_bin_files_is_unknown(spec_of):
    draft = valid_draft("native")
    draft.tensors.clear()
    spec = spec_of(draft)
    assert (spec.weights, spec.embeddings, spec.head) == ("bin", "unknown", "unknown")


def test_mask_token_in_the_order_of_vllm(spec_of):
    draft = valid_draft("dflash")
    keys = ["mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id"]
    draft.config |= {key: index + 1 for index, key in enumerate(keys)}
    ids = [spec_of(draft).mask_token_id]
    del draft.config["dflash_config"]["mask_token_id"]
    for key in keys:
        ids.append(spec_of(draft).mask_token_id)
        del draft.config[key]
    assert ids == [VOCAB - 1, 1, 2, 3, 4]
    assert spec_of(draft).mask_token_id is None


def test_mask_token_zero_is_one(spec_of):
    draft = valid_draft("dflash")
    draft.config["dflash_config"]["mask_token_id"] = 0
    draft.config["pard_token"] = 5
    assert spec_of(draft).mask_token_id == 0


@pytest.mark.parametrize("place", ["top_level", "dflash_config"])
def test_block_size(spec_of, place):
    draft = valid_draft("dflash")
    if place == "dflash_config":
        draft.config["dflash_config"]["block_size"] = draft.config.pop("block_size")
    assert spec_of(draft).block_size == 8


def test_vocabulary(spec_of):
    assert str(spec_of(valid_draft("native")).vocabulary) == "96, d2t as offsets"
    whole = valid_draft("mla")
    del whole.config["draft_vocab_size"]
    assert str(spec_of(whole).vocabulary) == "128"


def test_target_width_is_the_targets(spec_of):
    spec = spec_of(valid_draft("native"), target={"hidden_size": 2 * HIDDEN})
    assert (spec.hidden_size, spec.target_hidden_size) == (HIDDEN, 2 * HIDDEN)


@pytest.mark.parametrize(
    ("block", "name"),
    [
        pytest.param(None, None, id="none"),
        pytest.param({"quant_method": "fp8"}, "fp8", id="named"),
        pytest.param({}, "quantised", id="unnamed"),
    ],
)
def test_quantisation(spec_of, block, name):
    draft = valid_draft("native")
    draft.config["quantization_config"] = block
    assert spec_of(draft).quantisation == name


def test_reads_without_vllm_or_torch(tmp_path):
    folder = write(valid_draft("post-norm"), tmp_path)
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['vllm'] = None\n"
        "from vllm_eagle_ext.draft import *\n"
        "from vllm_eagle_ext.draft.spec import DraftRequest\n"
        f"target = TargetFacts(num_layers={LAYERS}, hidden_size={HIDDEN}, vocab_size={VOCAB})\n"
        f"print(inspect_draft(read_draft_files({str(folder)!r}), target, DraftRequest()).spec.title)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "post-norm EAGLE-3", result.stderr
