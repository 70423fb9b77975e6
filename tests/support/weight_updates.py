"""A drafter as an engine starts and updates it, without one: vLLM's own loader, sharing and reload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from tests.support.checkpoints import HIDDEN, VOCAB
from tests.support.drafter import construct
from tests.support.drafting import Probe, make_probe

Items = list[tuple[str, torch.Tensor]]


class Target(torch.nn.Module):
    """What a draft may share of a target."""

    def __init__(self, dtype: torch.dtype) -> None:
        from vllm.model_executor.layers.vocab_parallel_embedding import (
            ParallelLMHead,
            VocabParallelEmbedding,
        )

        super().__init__()
        self.model = torch.nn.Module()
        self.model.embed_tokens = VocabParallelEmbedding(VOCAB, HIDDEN, params_dtype=dtype)
        self.lm_head = ParallelLMHead(VOCAB, HIDDEN, params_dtype=dtype)

    def weights(self) -> list[torch.Tensor]:
        return [part.weight.detach().clone() for part in (self.model.embed_tokens, self.lm_head)]


@dataclass
class Started:
    config: Any
    draft: Any
    target: Target
    probe: Probe

    def update(self, parts: Sequence[Items]) -> None:
        bring(self.draft, self.config, parts)


def bring(draft: Any, config: Any, parts: Sequence[Items]) -> None:
    """As vLLM's weight transfer engines bring weights in buckets."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )

    with set_current_vllm_config(config):
        initialize_layerwise_reload(draft)
        for part in parts:
            draft.load_weights(iter(part))
        finalize_layerwise_reload(draft, config.speculative_config.draft_model_config)


def start(
    config: Any,
    dtype: torch.dtype,
    files: Items | None,
    *,
    dummy_target: bool = False,
    runner: str = "v1",
) -> Started:
    """With the draft's files, or with None as with `load_format: dummy`.

    Args:
        runner: whose code decides what the draft shares.
    """
    from vllm.config import set_current_vllm_config
    from vllm.config.load import LoadConfig
    from vllm.model_executor.layers import rotary_embedding
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    dummy = LoadConfig(load_format="dummy")
    config.speculative_config.draft_load_config = dummy if files is None else None
    model_config, cpu = config.speculative_config.draft_model_config, torch.device("cpu")
    rotary_embedding._ROPE_DICT.clear()  # a refused update leaves the tables without values
    with set_current_vllm_config(config):
        config.compilation_config.static_forward_context.clear()
        draft, target = construct(config, dtype), Target(dtype)
        record_metadata_for_reloading(draft)
        record_metadata_for_reloading(target)
        if files is None:
            DummyModelLoader(dummy).load_weights(draft, model_config)
        else:
            draft.load_weights(iter(files))
        process_weights_after_loading(draft, model_config, cpu)
        probe = make_probe()
        if dummy_target:
            DummyModelLoader(dummy).load_weights(target, model_config)
        else:
            target.model.embed_tokens.weight.data.copy_(probe.embed_tokens)
            target.lm_head.weight.data.copy_(probe.lm_head)
        process_weights_after_loading(target, model_config, cpu)
        _SHARE[runner](draft, target, config)
    return Started(config, draft, target, probe)


def _share_on_v1(draft: Any, target: Target, config: Any) -> None:
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    proposer = SimpleNamespace(model=draft, vllm_config=config, use_local_argmax_reduction=False)
    SpecDecodeBaseProposer._maybe_share_embeddings(proposer, target)
    SpecDecodeBaseProposer._maybe_share_lm_head(proposer, target)


def _share_on_v2(draft: Any, target: Target, config: Any) -> None:
    """As `load_eagle_model` and `load_dflash_model` do, which build the draft too."""
    from vllm.v1.worker.gpu.spec_decode.eagle import utils

    utils.maybe_share_target_embed(draft, draft.model, target.model)
    if utils._should_share(draft, "has_own_lm_head", draft.lm_head, target.lm_head):
        del draft.lm_head
        draft.lm_head = target.lm_head


_SHARE = {"v1": _share_on_v1, "v2": _share_on_v2}


def buckets(items: Items, size: int) -> list[Items]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def forget_rows(draft: Any) -> None:
    """Empty the cache of the attention that stands in for vLLM's."""
    for layer in draft.model.layers:
        attention = layer.self_attn
        if hasattr(attention, "mla_attn"):
            attention.mla_attn.mla_attn.latents.clear()
            attention.mla_attn.mla_attn.rotated.clear()
        else:
            attention.attn.keep(0)
