"""`draft_vocabulary`: the rows that vLLM's head of a draft holds, how they get there and are kept."""

from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import HIDDEN, VOCAB
from tests.support.draft_vocabularies import whole, write_ids
from tests.support.drafting import BOUND, difference, dtype_of, make_probe, module_logits, resolve_draft
from tests.support.weight_updates import Started, bring, buckets, forget_rows, start
from vllm_eagle_ext.errors import UnsupportedDraftError, UnsupportedTargetError

IDS = sorted(torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))[:70].tolist())
# The target's head, but for the last, which has a whole head of its own.
FAMILIES = ["native", "qwen3", "gated", "speculators", "p-eagle", "dflash", "dflash-speculators", "mla"]


class Pair:
    def __init__(self, tmp_path, family, draft=None, **options):
        self.family, self.draft = family, draft or whole(family)
        self.config, _ = resolve_draft(tmp_path, self.draft, **options)
        hf_config = self.config.speculative_config.draft_model_config.hf_config
        self.layer_ids = getattr(hf_config, "eagle_aux_hidden_state_layer_ids", ())

    def start(self, *, dummy: bool = False, **options) -> Started:
        files = None if dummy else list(self.draft.tensors.items())
        return start(self.config, dtype_of(self.draft), files, **options)

    def logits(self, started: Started) -> torch.Tensor:
        forget_rows(started.draft)
        return module_logits(started.draft, self.family, self.layer_ids, started.probe)


@pytest.fixture
def file(tmp_path):
    return write_ids(tmp_path / "ids.json", IDS)


def kept(logits: torch.Tensor) -> torch.Tensor:
    return logits[:, IDS]


def assert_reduced(logits: torch.Tensor, expected: torch.Tensor) -> None:
    assert logits.shape[-1] == VOCAB
    assert difference(kept(logits), kept(expected)) < BOUND
    others = [token for token in range(VOCAB) if token not in IDS]
    assert (logits[:, others] == float("-inf")).all()


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_whole_head_at_the_ids(tmp_path, family, runner, file):
    """In float32, which a CPU's kernels pack: the packed copy must be of the rows, too."""
    expected = Pair(tmp_path / "whole", family)
    reduced = Pair(tmp_path / "reduced", family, draft_vocabulary=file)
    started = reduced.start(runner=runner)
    assert started.draft.lm_head is not started.target.lm_head
    assert tuple(started.draft.lm_head.weight.shape) == (128, HIDDEN)  # 70 ids, padded by vLLM
    assert_reduced(reduced.logits(started), expected.logits(expected.start(runner=runner)))


def test_the_head_is_packed_in_float32():
    """Or the test above would not see a packed copy that is left as it was."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    head = ParallelLMHead(128, HIDDEN, params_dtype=torch.float32)
    head.weight.data.fill_(1)
    head.quant_method.process_weights_after_loading(head)
    head.weight.data.fill_(2)
    logits = head.quant_method.apply(head, torch.ones(1, HIDDEN))
    assert (logits == HIDDEN).all(), "this CPU packs no copy"


def test_rows_follow_the_target(tmp_path, file):
    """vLLM's layerwise reload, which `reload_weights` and weight transfer use, brings the target another
    head."""
    pair = Pair(tmp_path, "dflash", draft_vocabulary=file)
    started = pair.start()
    before = pair.logits(started)
    pointer = started.draft.lm_head.weight.data_ptr()
    reload_target(started, started.probe.lm_head * 2)
    assert started.draft.lm_head.weight.data_ptr() == pointer  # captured graphs read it
    assert difference(kept(pair.logits(started)), kept(2 * before)) < BOUND


def reload_target(started, head):
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )

    with set_current_vllm_config(started.config):
        initialize_layerwise_reload(started.target)
        parameter = started.target.lm_head.weight
        parameter.weight_loader(parameter, head)
        finalize_layerwise_reload(started.target, started.config.model_config)


@pytest.mark.parametrize("size", [1000, 4])
@pytest.mark.parametrize("dummy", [True, False])
@pytest.mark.parametrize("family", ["native", "dflash", "mla"])
def test_the_draft_is_updated(tmp_path, family, dummy, size, file):
    pair = Pair(tmp_path / "reduced", family, draft_vocabulary=file)
    started = pair.start(dummy=dummy)
    pair.logits(started)
    before = started.target.weights()
    new = whole(family, seed=1)
    started.draft.draft_id_to_target_id.data.zero_()  # level 2 sleep leaves it without values
    bring(started.draft, pair.config, buckets(list(new.tensors.items()), size))
    assert all(map(torch.equal, started.target.weights(), before))
    expected = Pair(tmp_path / "whole", family, draft=new)
    assert_reduced(pair.logits(started), expected.logits(expected.start()))


def test_a_dummy_start_has_the_map(tmp_path, file):
    started = Pair(tmp_path, "native", draft_vocabulary=file).start(dummy=True)
    offsets = started.draft.draft_id_to_target_id
    assert (offsets + torch.arange(len(IDS))).tolist() == IDS


@pytest.mark.parametrize("layerwise", [True, False])
def test_an_update_brings_no_other_head(tmp_path, file, layerwise):
    """Of a draft whose files could not be read beforehand: it may have a head."""
    config, _ = resolve_draft(tmp_path / "bin", whole("dflash"), as_bin=True, draft_vocabulary=file)
    started = start(config, torch.float32, list(whole("dflash").tensors.items()))
    load = bring if layerwise else lambda draft, _, parts: draft.load_weights(iter(parts[0]))
    same = started.probe.lm_head
    load(started.draft, config, [[("lm_head.weight", same)]])
    with pytest.raises(UnsupportedDraftError, match=r"lm_head\.weight of the weight update"):
        load(started.draft, config, [[("lm_head.weight", same + 1)]])


def test_a_head_that_was_never_filled(tmp_path, file):
    """vLLM shares no head of a target without one."""
    pair = Pair(tmp_path, "dflash", draft_vocabulary=file)
    from vllm.config import set_current_vllm_config

    from tests.support.drafter import construct

    with set_current_vllm_config(pair.config):
        pair.config.compilation_config.static_forward_context.clear()
        draft = construct(pair.config, torch.float32)
        draft.load_weights(iter(pair.draft.tensors.items()))
        draft.process_weights_after_loading()
    with pytest.raises(UnsupportedTargetError, match="output head that vLLM shares .* is missing"):
        draft(torch.zeros(2, dtype=torch.long), torch.arange(2))


class Packed:
    """A quantisation's method."""


@pytest.mark.parametrize("whose", ["target", "draft"])
def test_a_head_without_plain_rows(tmp_path, file, whose):
    pair = Pair(tmp_path, "dflash", draft_vocabulary=file)
    started = pair.start()
    head = started.target.lm_head if whose == "target" else started.draft.lm_head
    head.quant_method = Packed()
    with pytest.raises(UnsupportedTargetError, match=f"output head of the {whose} is 'Packed'"):
        started.draft.lm_head = started.target.lm_head


@pytest.mark.parametrize("rows", [VOCAB, 100])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_rows_of_shards(ranks, rows, monkeypatch):
    """Each rank has its rows of the target's head, padded by vLLM, and takes its share of those kept."""
    from vllm.model_executor.layers import vocab_parallel_embedding

    from vllm_eagle_ext.families.parts import kept_rows

    monkeypatch.setattr(kept_rows, "_AT_ONCE", 9)
    table = make_probe().lm_head[:rows]
    ids = [token for token in IDS if token < rows]
    monkeypatch.setattr(vocab_parallel_embedding, "get_tensor_model_parallel_world_size", lambda: ranks)
    sources, built = [], []
    for rank in range(ranks):
        monkeypatch.setattr(vocab_parallel_embedding, "get_tensor_model_parallel_rank", lambda r=rank: r)
        head = vocab_parallel_embedding.ParallelLMHead
        # vLLM pads to a multiple of 64, which three ranks do not share evenly.
        source, own = (head(count, HIDDEN, padding_size=96) for count in (rows, len(ids)))
        for each in (source, own):
            each.weight.data.fill_(float("nan"))
        source.weight_loader(source.weight, table)
        sources.append(source)
        built.append(own)

    def of_all_ranks(mine):
        return mine + sum(rows_of_one(other, asked[0]) for other in sources if other is not asked[1])

    def rows_of_one(head, wanted):
        with monkeypatch.context() as patch:
            patch.setattr(kept_rows, "tensor_model_parallel_all_reduce", lambda rows: rows)
            return plain_rows_of(head, wanted)

    asked, plain_rows_of = [None, None], kept_rows.rows_of
    monkeypatch.setattr(kept_rows, "tensor_model_parallel_all_reduce", of_all_ranks)
    for source, own in zip(sources, built, strict=True):
        keeper = kept_rows.KeptRows(own, ids)

        def noted(head, wanted):
            asked[:] = [wanted, head]
            return plain_rows_of(head, wanted)

        monkeypatch.setattr(kept_rows, "rows_of", noted)
        keeper.fill_from(source)
        monkeypatch.setattr(kept_rows, "rows_of", plain_rows_of)
    together = torch.cat([own.weight[: own.shard_indices.num_org_elements] for own in built])
    assert torch.equal(together, table[ids])
    for own in built:
        assert (own.weight[own.shard_indices.num_org_elements :] == 0).all()


def test_what_compiles_is_hashed_with_the_ids(tmp_path, file):
    """Of one path, whose file has changed since."""
    first = Pair(tmp_path / "first", "dflash", draft_vocabulary=file).config.speculative_config
    again = Pair(tmp_path / "first", "dflash", draft_vocabulary=file).config.speculative_config
    write_ids(tmp_path / "ids.json", range(70))
    other = Pair(tmp_path / "first", "dflash", draft_vocabulary=file).config.speculative_config
    hashes = [config.compute_hash() for config in (first, again, other)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_an_adapter_around_the_targets_head(tmp_path, file):
    """vLLM wraps tied embeddings, which are the head, with their adapters."""
    from vllm.lora.layers.base import BaseLayerWithLoRA

    pair = Pair(tmp_path, "dflash", draft_vocabulary=file)
    started = pair.start()
    wrapped = BaseLayerWithLoRA.__new__(BaseLayerWithLoRA)
    torch.nn.Module.__init__(wrapped)
    wrapped.base_layer = started.target.lm_head
    before = pair.logits(started)
    started.draft.lm_head.weight.data.zero_()
    started.draft.lm_head = wrapped
    assert difference(kept(pair.logits(started)), kept(before)) < BOUND


def test_the_head_stays_the_built_one(tmp_path, file):
    started = Pair(tmp_path, "dflash", draft_vocabulary=file).start()
    built = started.draft.lm_head
    started.draft.lm_head = built
    assert started.draft.lm_head is built
