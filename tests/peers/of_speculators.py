"""Drafts of vllm-project/speculators: written by its classes, drafted with by its forwards.

Bypassed: random choice of training positions, losses, and, of windowed drafts, which key a window
starts at: the library counts from the chain's first row, an engine from each row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors import safe_open

from tests.peers.chains import Chains
from tests.peers.hooks import draft_own_tokens, until_logits
from tests.peers.texts import TARGET, states, target
from tests.peers.weights import perturb, vocabulary_maps

K = 3
BLOCK = 8
MASK = 1  # a token that the texts do not hold
_ON_BLOCKS = ("dflash", "dflash2", "dspark")


def write(folder: Path, algorithm: str, *, verifier: str = TARGET, **flags: Any) -> Path:
    """A draft as `speculators train` builds one, with its defaults where `flags` say nothing."""
    from speculators.train.cli import create_transformer_layer_config

    layer = {
        "num_layers": 1,
        "draft_arch": "qwen3" if algorithm in _ON_BLOCKS else "llama",
        "sliding_window": 2048,
        "full_attention_indices": [],
    }
    layer |= {name: flags.pop(name) for name in list(layer) if name in flags}
    config = create_transformer_layer_config(verifier, hidden_act=None, **layer)
    for name, value in {"num_attention_heads": 4, "intermediate_size": 128}.items():
        setattr(config, name, flags.pop(name, value))
    for name in ("num_key_value_heads", "attention_bias", "mlp_bias", "rope_parameters"):
        if name in flags:
            setattr(config, name, flags.pop(name))
    vocabulary = flags.pop("draft_vocab_size", config.vocab_size)
    defaults = {
        "norm_before_residual": True,
        "norm_before_fc": algorithm == "eagle3",
        "fc_norm": False,
        "norm_output": algorithm == "eagle3",
        "mask_token_id": MASK,
        "block_size": BLOCK,
        "ttt_steps": K,
        "num_depths": K,
        "draft_attn_impl": "eager",
    }
    keep = () if flags.pop("own_embeddings", algorithm == "peagle") else ("embed_tokens", "verifier")
    t2d, d2t = vocabulary_maps(config.vocab_size, vocabulary)
    maps = {} if vocabulary == config.vocab_size else {"t2d": t2d, "d2t": d2t}
    model = _class(algorithm).from_training_args(
        config,
        verifier_name_or_path=verifier,
        draft_vocab_size=vocabulary,
        **maps,
        **defaults | flags,
    )
    perturb(model, keep=keep)
    model.save_pretrained(folder)
    return folder


def convert(folder: Path, source: str, algorithm: str, verifier: str = TARGET) -> Path:
    """A draft of the published format, put into the library's own by its converter."""
    from speculators.convert.entrypoints import convert_model

    convert_model(source, verifier, algorithm, str(folder))  # type: ignore[arg-type]
    return folder


def _class(algorithm: str) -> Any:
    from speculators.models.dflash.core import DFlashDraftModel
    from speculators.models.dflash2.core import DFlash2DraftModel
    from speculators.models.dspark.core import DSparkDraftModel
    from speculators.models.eagle3.core import Eagle3DraftModel
    from speculators.models.peagle.core import PEagleDraftModel

    return {
        "eagle3": Eagle3DraftModel, "peagle": PEagleDraftModel, "dflash": DFlashDraftModel,
        "dflash2": DFlash2DraftModel, "dspark": DSparkDraftModel,
    }[algorithm]  # fmt: skip


def load(folder: Path) -> Any:
    """The file, read by the library, in fp32."""
    from speculators.config import SpeculatorModelConfig

    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    algorithm = config.speculators_model_type
    model = _class(algorithm).from_pretrained(folder, config=config, dtype=torch.float32)
    with safe_open(folder / "model.safetensors", "pt") as file:
        shared = "embed_tokens.weight" not in file.keys()  # noqa: SIM118 (no dictionary)
    if shared:  # NaN is how it tells what the file lacks; under transformers 5 it is whatever
        model.embed_tokens.weight.data.fill_(torch.nan)
        model.load_verifier_weights()
    return model.float().eval()


def draft(folder: Path, tokens: tuple[int, ...], verifier: str = TARGET) -> Chains:
    model = load(folder)
    layers = model.target_layer_ids
    # Training states are an engine's, which collects in the order of the layers (README of the library).
    inputs = states(tokens, sorted(layers), verifier)
    algorithm = model.config.speculators_model_type
    by_algorithm = {
        "eagle3": _eagle3, "peagle": _peagle, "dflash": _dflash, "dflash2": _walked, "dspark": _walked,
    }  # fmt: skip
    return by_algorithm[algorithm](model, inputs, tokens)


def _target_ids(model: Any) -> torch.Tensor:
    ids = torch.arange(model.draft_vocab_size)
    return ids if model.d2t is None else ids + model.d2t


@torch.no_grad()
def _eagle3(model: Any, inputs: torch.Tensor, tokens: tuple[int, ...]) -> Chains:
    """Its training forward, each step of which reads the draft's own token instead of the text's."""
    ids = _target_ids(model)
    logits = draft_own_tokens(model, ids)
    text = torch.tensor([tokens[1:]])
    with contextlib.ExitStack() as stack:
        if model.uses_sliding_window_attn:
            model._build_attn_mask, extend = _windowed(model.sliding_window)
            name = "speculators.models.eagle3.core.extend_dense_mask_for_draft_tokens"
            stack.enter_context(mock.patch(name, extend))
        model(inputs[:, :-1], text, torch.zeros_like(text), ttt_steps=K)
    return Chains.of_logits(torch.stack(logits, dim=1), ids)


def _windowed(window: int) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """Masks of a chain's first step and of each next one, where a window ends at the row itself."""

    def mask(rows: int, step: int) -> torch.Tensor:
        """[1, 1, rows, rows * (step + 1)]; step s of row p stands at p + s."""
        row, key = torch.arange(rows)[:, None], torch.arange(rows)
        blocks = [(key <= row) & (row + step - key < window)]
        blocks += [(key == row) & (step - s < window) for s in range(1, step + 1)]
        visible = torch.cat(blocks, dim=1)
        return torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[None, None]

    def first(_documents: Any, rows: int, _device: Any, _window: int | None = None) -> torch.Tensor:
        return mask(rows, 0)

    def extend(previous: torch.Tensor, rows: int) -> torch.Tensor:
        return mask(rows, previous.shape[-1] // rows)

    return first, extend


@torch.no_grad()
def _peagle(model: Any, inputs: torch.Tensor, tokens: tuple[int, ...]) -> Chains:
    """Every row as an anchor, with all its depths that lie inside the text."""
    rows = len(tokens) - 1
    anchors = torch.cat([torch.arange(rows - depth) for depth in range(K)])
    depths = torch.cat([torch.full((rows - depth,), depth) for depth in range(K)])
    text = torch.tensor([tokens[1:]])
    arguments = (inputs[:, :-1], text, torch.zeros_like(text))
    last = inputs[:, :-1, : model.hidden_size]
    sampled = "speculators.models.peagle.core.generate_cod_sample_indices"
    with mock.patch(sampled, return_value=(anchors, depths)):
        logits = until_logits(model, model.lm_head, *arguments, verifier_last_hidden_states=last)
    chains = torch.stack([logits[depths == depth][: rows - K + 1] for depth in range(K)], dim=1)
    return Chains.of_logits(chains, _target_ids(model))


@torch.no_grad()
def _dflash(model: Any, inputs: torch.Tensor, tokens: tuple[int, ...]) -> Chains:
    logits = until_logits(
        model, model.lm_head, *_blocks(model, inputs, tokens), max_anchors=_anchors(model, tokens)
    )
    logits = logits.view(-1, model.block_size, logits.shape[-1])
    return Chains.of_logits(logits[:, 1:], _target_ids(model))


def _blocks(model: Any, inputs: torch.Tensor, tokens: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """A block behind every token but the first, up to those whose block ends with the text."""
    if model.uses_sliding_window_attn:
        model._create_attention_mask = _block_masks(model.sliding_window, model.block_size)
    allowed = torch.ones(1, len(tokens))
    allowed[:, 0] = 0
    text = torch.tensor([tokens])
    last = target().config.hidden_size
    return inputs, text, allowed, inputs[..., :last], torch.zeros_like(text)


def _anchors(model: Any, tokens: tuple[int, ...]) -> int:
    return len(tokens) - 1 - int(model.block_size)


@torch.no_grad()
def _walked(model: Any, inputs: torch.Tensor, tokens: tuple[int, ...]) -> Chains:
    """Its second head along the draft's own tokens, where training reads the text's."""
    anchors = _anchors(model, tokens)
    hidden, logits, *_ = model._backbone_forward(*_blocks(model, inputs, tokens), max_anchors=anchors)
    hidden, logits = (each.view(anchors, model.block_size, -1) for each in (hidden, logits))
    before, ids = torch.tensor(tokens[1 : 1 + anchors]), _target_ids(model)
    columns = []
    for position in range(0 if model.config.sample_from_anchor else 1, model.block_size):
        named, scores = _scored(model, hidden[:, position], logits[:, position], before, ids)
        best = scores.topk(2, dim=-1)
        before = named.gather(1, best.indices[:, :1])[:, 0]
        columns.append((before, best.values[:, 0], best.values[:, 0] - best.values[:, 1]))
    return Chains(*(torch.stack(parts, dim=1) for parts in zip(*columns, strict=True)))


def _scored(
    model: Any, hidden: torch.Tensor, logits: torch.Tensor, before: torch.Tensor, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The target ids [n, C] that a position chooses from, and what each scores behind `before`."""
    if model.config.speculators_model_type == "dflash2":
        named, scores = model.candidate_selector.select(logits, hidden, before)
        return named, scores
    bias = model.markov_head.block_bias(prev_token_ids=before[:, None], hidden_states=hidden[:, None])
    return ids.expand(len(logits), -1), logits + bias[:, 0]


def _block_masks(window: int, block: int) -> Callable[..., torch.Tensor]:
    def mask(
        document_ids: torch.Tensor,
        total_seq_len: int,
        anchor_positions: torch.Tensor,
        device: Any,
        sliding_window: int | None = None,
        sliding_window_non_causal: bool = False,
    ) -> torch.Tensor:
        """[1, 1, anchors * block, text + anchors * block]; a window counts from each row's own place."""
        del document_ids, device
        anchor = anchor_positions.repeat_interleave(block)[:, None]
        offset = torch.arange(block).repeat(len(anchor_positions))[:, None]
        key = torch.arange(total_seq_len)
        context = key < anchor
        own = anchor == anchor.T
        if sliding_window is not None:
            context &= anchor + offset - key < window
            own = own & ((offset - offset.T).abs() < window)
            if not sliding_window_non_causal:
                own = own & (offset >= offset.T)
        visible = torch.cat([context, own], dim=1)
        return torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[None, None]

    return mask
