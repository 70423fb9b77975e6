"""Weights that reach a draft after its start: all in place, in the draft and never in the target."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support import weight_updates
from tests.support.checkpoints import VOCAB
from tests.support.drafting import BOUND, difference, dtype_of, make_probe, module_logits, resolve_draft
from tests.support.drafts import valid_draft
from tests.support.weight_updates import buckets, forget_rows, start
from tests.unit.families.test_gate import gated_draft
from vllm_eagle_ext.errors import UnsupportedDraftError

# speculators: embeddings of its own. native: a head of its own. dflash: neither.
UPDATED = ["native", "post-norm", "qwen3", "gated", "mla", "speculators", "dflash", "dflash-speculators"]
SIZES = {"whole": 1000, "buckets": 4, "one by one": 1}


class Case:
    """A draft on disk, and another training step of it."""

    def __init__(self, tmp_path, family, draft=None):
        self.family, self.dtype = family, dtype_of(draft or valid_draft(family))
        self.old = draft or valid_draft(family)
        self.new = self.old if draft else valid_draft(family, seed=1)
        if "d2t" in self.new.tensors:  # a map does not change in training
            self.new.tensors |= {n: self.old.tensors[n] for n in ("d2t", "t2d")}
        self.config, _ = resolve_draft(tmp_path, self.old)
        self.layer_ids = getattr(
            self.config.speculative_config.draft_model_config.hf_config,
            "eagle_aux_hidden_state_layer_ids",
            (),
        )

    def start(self, how, **options):
        files = None if how == "dummy" else list(self.old.tensors.items())
        return start(self.config, self.dtype, files, **options)

    def logits(self, started):
        return module_logits(started.draft, self.family, self.layer_ids, started.probe)

    @property
    def expected(self):
        """Logits of a start with the new weights."""
        return self.logits(start(self.config, self.dtype, list(self.new.tensors.items())))


def changed(tensors):
    return [(name, tensor + 1 if name == "embed_tokens.weight" else tensor) for name, tensor in tensors]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", ["dummy", "files"])
@pytest.mark.parametrize("family", UPDATED)
def test_a_draft_drafts_by_its_new_weights(tmp_path, family, how, size):
    case = Case(tmp_path, family)
    started = case.start(how)
    before = started.target.weights()
    case.logits(started)  # vLLM runs a step before it serves
    forget_rows(started.draft)
    started.update(buckets(list(case.new.tensors.items()), SIZES[size]))
    assert all(map(torch.equal, started.target.weights(), before)), "the target has changed"
    assert difference(case.logits(started), case.expected) < BOUND


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize(
    "family", ["speculators", "mla"]
)  # embeddings, and a head, of the target's size
def test_dummy_weights_of_both_are_not_taken_for_the_same(tmp_path, family, runner):
    """vLLM's follow from the shape: the draft would get the target's modules, and the target later the
    draft's weights."""
    case = Case(tmp_path, family)
    started = case.start("dummy", dummy_target=True, runner=runner)
    before = started.target.weights()
    started.update([list(case.new.tensors.items())])
    assert all(map(torch.equal, started.target.weights(), before)), "the target has changed"
    own = {"speculators": started.draft.model.embed_tokens, "mla": started.draft.lm_head}[family]
    name = {"speculators": "embed_tokens.weight", "mla": "lm_head.weight"}[family]
    assert torch.equal(own.weight[:VOCAB], case.new.tensors[name].to(case.dtype))


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_the_targets_modules_are_shared_where_the_draft_has_none(tmp_path, runner):
    started = Case(tmp_path, "dflash").start("dummy", runner=runner)
    assert started.draft.model.embed_tokens is started.target.model.embed_tokens
    assert started.draft.lm_head is started.target.lm_head


def test_a_load_that_no_start_has_finished_spares_the_target(tmp_path):
    """Which fills what it loads with NaN first."""
    case = Case(tmp_path, "native")
    started = case.start("dummy")
    started.draft.has_started = False
    started.draft._forget()
    assert started.draft.model.norm.weight.isnan().all()
    assert not any(weight.isnan().any() for weight in started.target.weights())


class TestEmbeddingsThatWereTheTargets:
    """The draft's were the same at the start, so that vLLM keeps one copy of them."""

    @pytest.fixture
    def case(self, tmp_path):
        draft = valid_draft("speculators")
        draft.tensors["embed_tokens.weight"] = make_probe().embed_tokens.bfloat16()
        return Case(tmp_path, "speculators", draft)

    @pytest.fixture
    def started(self, case, monkeypatch):
        probe = replace(make_probe(), embed_tokens=make_probe().embed_tokens.bfloat16().float())
        monkeypatch.setattr(weight_updates, "make_probe", lambda: probe)
        started = case.start("files")
        assert started.draft.model.embed_tokens is started.target.model.embed_tokens
        return started

    @pytest.mark.parametrize("size", SIZES)
    def test_the_same_values_are_left_where_they_are(self, case, started, size):
        before = started.target.weights()
        started.update(buckets(list(case.new.tensors.items()), SIZES[size]))
        assert all(map(torch.equal, started.target.weights(), before))

    @pytest.mark.parametrize("layerwise", [True, False])
    def test_other_values_are_refused(self, case, started, layerwise):
        before = started.target.weights()
        other = changed([("embed_tokens.weight", case.new.tensors["embed_tokens.weight"])])
        bring = started.update if layerwise else lambda parts: started.draft.load_weights(iter(parts[0]))
        with pytest.raises(UnsupportedDraftError, match=r"embed_tokens\.weight of the weight update"):
            bring([other])
        if not layerwise:
            assert all(map(torch.equal, started.target.weights(), before))


def test_the_files_headers_decide_and_bin_files_by_their_load(tmp_path):
    """A draft in .bin files shows only while it is loaded what it has."""
    own = Case(tmp_path / "own", "speculators").start("dummy").draft
    assert (own.has_own_embed_tokens, own.has_own_lm_head) == (True, True)
    draft = valid_draft("speculators")
    config, _ = resolve_draft(tmp_path / "bin", draft, as_bin=True)
    loaded = start(config, torch.float32, list(draft.tensors.items())).draft
    assert (loaded.has_own_embed_tokens, loaded.has_own_lm_head) == (True, True)


@pytest.mark.parametrize("size", ["whole", "one by one"])
def test_a_gate_of_its_own_comes_with_its_query(tmp_path, size):
    draft = gated_draft("native", "elementwise", "g_proj")
    case = Case(tmp_path, "gated", draft)
    started = case.start("dummy")
    parts = buckets(list(draft.tensors.items()), SIZES[size])
    if size == "whole":
        started.update(parts)
        assert difference(case.logits(started), case.expected) < BOUND
    else:
        with pytest.raises(UnsupportedDraftError, match=r"g_proj.*in the same bucket"):
            started.update(parts)


def test_p_eagle_is_not_updated(tmp_path):
    case = Case(tmp_path, "p-eagle")
    started = case.start("files")
    with pytest.raises(UnsupportedDraftError, match="weight update of a P-EAGLE draft"):
        started.update([list(case.new.tensors.items())])


def test_dummy_weights_are_told(tmp_path, vllm_log):
    started = Case(tmp_path, "native")
    started.start("files")
    assert not vllm_log.containing("dummy weights")
    started.start("dummy")
    assert vllm_log.containing("drafts noise until an update")
