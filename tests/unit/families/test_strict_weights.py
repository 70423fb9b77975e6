"""What only the load of a draft can see: large tensors are not read before; .bin files not at all."""

from __future__ import annotations

import pytest
import torch

from tests.support.drafter import construct
from tests.support.drafting import resolve_draft
from tests.support.drafts import valid_draft
from vllm_eagle_ext.errors import UnsupportedDraftError


class TestWhatOnlyTheLoadCanSee:
    @pytest.fixture
    def drafter(self, tmp_path):
        return construct(resolve_draft(tmp_path, valid_draft("native"))[0], torch.float32)

    def load(self, drafter, change):
        tensors = valid_draft("native").tensors
        change(tensors)
        drafter.load_weights(iter(tensors.items()))

    def test_nothing_changed(self, drafter):
        self.load(drafter, lambda tensors: None)

    def test_embeddings_that_the_target_shares_are_not_written_to(self, drafter):
        """A host would pay for rows of the whole vocabulary that nothing reads."""
        embeddings = drafter.model.embed_tokens.weight.data.fill_(7.0)
        self.load(drafter, lambda tensors: None)
        assert (embeddings == 7).all()

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_one_value_that_is_not_finite(self, drafter, value):
        def change(tensors):
            tensors["midlayer.mlp.up_proj.weight"][3, 5] = value

        with pytest.raises(UnsupportedDraftError, match=r"gate_up_proj\.weight"):
            self.load(drafter, change)

    def test_missing(self, drafter):
        with pytest.raises(UnsupportedDraftError, match="without .*k_proj"):
            self.load(drafter, lambda tensors: tensors.pop("midlayer.self_attn.k_proj.weight"))

    def test_a_part_that_never_arrives_is_seen_without_the_list(self, drafter):
        """By the parameters that vLLM has built."""
        drafter.loading_plan.required.pop("layers.0.self_attn.k_proj.weight")
        with pytest.raises(UnsupportedDraftError, match="without .*k_proj"):
            self.load(drafter, lambda tensors: tensors.pop("midlayer.self_attn.k_proj.weight"))

    def test_unexpected(self, drafter):
        with pytest.raises(UnsupportedDraftError, match="tensor extra"):
            self.load(drafter, lambda tensors: tensors.update(extra=torch.ones(2)))

    def test_taller(self, drafter):
        def change(tensors):
            name = "midlayer.self_attn.q_proj.weight"
            tensors[name] = torch.cat([tensors[name]] * 2)

        with pytest.raises(UnsupportedDraftError, match=r"shape of .*q_proj"):
            self.load(drafter, change)

    def test_d2t_that_is_no_map(self, drafter):
        with pytest.raises(UnsupportedDraftError, match="d2t"):
            self.load(drafter, lambda tensors: tensors["d2t"].fill_(-1))

    def test_an_update_may_bring_some_tensors_only(self, drafter):
        self.load(drafter, lambda tensors: None)
        drafter.load_weights(iter([("norm.weight", torch.full((64,), 2.0))]))
        assert (drafter.model.norm.weight == 2).all()
