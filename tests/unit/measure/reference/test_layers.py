"""The reference of made-up drafts against transformers' own layers: logits, and drafted tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.checkpoints import HEAD_DIM, HEADS, HIDDEN, INTER, KV_HEADS
from tests.support.drafts import LAYER, MASK_TOKEN, Draft, valid_draft
from tests.unit.measure.reference.layers import (
    LLAMA3,
    ROWS,
    YARN,
    Both,
    assert_equal_rows,
    both,
    rope,
    tiny_target,
)

K = 4


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def attention_bias(draft: Draft) -> None:
    draft.config["attention_bias"] = True
    rows = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM, "o": HIDDEN}
    for name, size in rows.items():
        draft.tensors[f"midlayer.self_attn.{name}_proj.bias"] = torch.randn(size)


def mlp_bias(draft: Draft) -> None:
    draft.config["mlp_bias"] = True
    for name, size in {"gate": INTER, "up": INTER, "down": HIDDEN}.items():
        draft.tensors[f"midlayer.mlp.{name}_proj.bias"] = torch.randn(size)


def window(size: int) -> Callable[[Draft], None]:
    keys = {"layer_types": ["sliding_attention"], "sliding_window": size}
    return lambda draft: draft.config.update(keys)


CHANGES: dict[str, Callable[[Draft], None]] = {
    "as_it_is": lambda _draft: None,
    "attention_bias": attention_bias,
    "mlp_bias": mlp_bias,
    "llama3": rope("rope_scaling", LLAMA3),
    "linear": rope("rope_scaling", {"rope_type": "linear", "factor": 2.0}),
    "yarn": rope("rope_parameters", YARN),
    "yarn_betas": rope("rope_scaling", YARN | {"beta_fast": 16.0, "beta_slow": 2.0}),
    "window": window(7),
    "window_beyond_the_text": window(2048),
}


@pytest.mark.parametrize("change", sorted(CHANGES.keys() - {"as_it_is", "window_beyond_the_text"}))
@torch.inference_mode()
def test_each_change_shows(change, tmp_path, target):
    """Else the comparison above would hold with it ignored."""
    plain, changed = valid_draft("native"), valid_draft("native")
    CHANGES[change](changed)
    rows = []
    for at, draft in enumerate((plain, changed)):
        pair = both(draft, tmp_path / str(at), target)
        rows.append(pair.host.rows(pair.tokens[1:], pair.host.fuse(pair.states)[:ROWS])[0])
    assert (rows[0] - rows[1]).abs().max() > 0.1


@pytest.mark.parametrize("family", ["native", "post-norm", "norm_before_fc", "p-eagle"])
def test_blocks_listed_otherwise(family, tmp_path, target):
    """The option lists the aux layers of the file's blocks; the target's states come ascending."""
    draft = valid_draft(family)
    count = 5 if family == "post-norm" else 3
    pair = both(draft, tmp_path, target, aux_layers=[6, 1, 4, 2, 8][:count])
    assert list(pair.host.order) != sorted(pair.host.order)
    assert_equal_rows(pair)


def speculators_default(layers: int = 1) -> Draft:
    """As `speculators train` writes an EAGLE-3 draft where nothing is asked for."""
    draft = valid_draft("speculators")
    flags = ("norm_before_residual", "norm_before_fc", "norm_output")
    draft.config |= dict.fromkeys(flags, True) | {"sliding_window": 2048}
    draft.config[LAYER] |= {
        "num_hidden_layers": layers, "layer_types": ["sliding_attention"] * layers,
        "sliding_window": 2048,
    }  # fmt: skip
    draft.tensors["input_norm.weight"] = 1 + 0.3 * torch.randn(3 * HIDDEN)
    if layers > 1:
        draft.tensors |= {
            name: tensor for name, tensor in valid_draft("p-eagle").tensors.items() if "layers.1" in name
        }
    return draft


@torch.inference_mode()
def chain(pair: Both, start: int, *, normed: bool) -> list[int]:
    """K tokens from row `start`, one pass over all rows each."""
    tokens, g = pair.tokens[1 : start + 2], pair.host.fuse(pair.states)[: start + 1]
    drafted = []
    for _ in range(K):
        logits, state = pair.host.rows(tokens, g)
        token = int(pair.reference.target_ids[logits[-1].argmax()])
        drafted.append(token)
        fed = pair.host.norm("norm", state[-1:]) if normed else state[-1:]
        tokens, g = torch.cat([tokens, torch.tensor([token])]), torch.cat([g, fed])
    return drafted


def assert_equal_chains(pair: Both, *, normed: bool) -> None:
    rows = pair.reference.true_rows(pair.tokens.tolist(), pair.states)
    for start in (0, 5, 11, ROWS - 1):
        assert pair.reference.draft(start, K, rows).tokens == chain(pair, start, normed=normed)


@pytest.mark.parametrize("family", ["native", "post-norm"])
@pytest.mark.parametrize("change", CHANGES)
def test_rows_and_chains(family, change, tmp_path, target):
    draft = valid_draft(family)
    CHANGES[change](draft)
    pair = both(draft, tmp_path, target)
    assert_equal_rows(pair)
    assert_equal_chains(pair, normed=family == "post-norm")


@pytest.mark.parametrize("layers", [1, 2])
def test_speculators_default(tmp_path, layers, target):
    pair = both(speculators_default(layers), tmp_path, target)
    assert pair.reference.norm_output
    assert pair.reference.norm_before_residual
    assert_equal_rows(pair)
    assert_equal_chains(pair, normed=True)


def p_eagle(**flags: bool) -> Draft:
    draft = valid_draft("p-eagle")
    draft.config |= flags
    if flags.get("fc_norm"):
        draft.tensors |= {f"fc_norm.{k}.weight": 1 + 0.3 * torch.randn(HIDDEN) for k in range(3)}
    if flags.get("norm_before_fc"):
        draft.tensors["input_norm.weight"] = 1 + 0.3 * torch.randn(3 * HIDDEN)
    return draft


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"fc_norm": True},
        {"norm_before_fc": True},
        {"norm_output": True, "norm_before_residual": True},
    ],
)
@torch.inference_mode()
def test_p_eagle(tmp_path, flags, target):
    """All K in one pass: behind the first row K - 1 mask tokens, each with the fused hidden mask."""
    pair = both(p_eagle(**flags), tmp_path, target)
    assert_equal_rows(pair)
    rows = pair.reference.true_rows(pair.tokens.tolist(), pair.states)
    hidden = pair.host.tensors["mask_hidden"].flatten().chunk(3)
    for start in (0, 5, 11, ROWS - 1):
        masks = torch.full((K - 1,), MASK_TOKEN)
        tokens = torch.cat([pair.tokens[1 : start + 2], masks])
        fused = pair.host.fuse(pair.states)[: start + 1]
        mask = pair.host.fuse([state[None] for state in hidden]).expand(K - 1, -1)
        logits, _ = pair.host.rows(tokens, torch.cat([fused, mask]))
        drafted = pair.reference.draft(start, K, rows)
        assert drafted.tokens == pair.reference.target_ids[logits[start:].argmax(-1)].tolist()
        assert drafted.logits == pytest.approx(logits[start:].amax(-1).tolist(), abs=2e-4)
