"""The drafter module, layer by layer vLLM's own, against the plain PyTorch reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.checkpoints import DRAFT_VOCAB, HIDDEN, VOCAB, tiny_draft, write_target
from tests.support.drafter import build, resolve
from tests.support.engine import has_gpu
from vllm_eagle_ext.measure.reference.eagle3 import Eagle3Reference

pytestmark = pytest.mark.skipif(
    has_gpu(), reason="builds vLLM's layers on its CPU platform; the engine tests cover a GPU"
)

ROWS, K = 10, 4
# Largest error of a logit over the standard deviation of the logits.
BOUND = {torch.float32: 1e-4, torch.bfloat16: 0.08}


def build_drafter(folder, dtype, *, num_aux, post_norm):
    """The registered class on a random checkpoint, its config resolved by preflight."""
    draft = tiny_draft(folder / "draft", num_aux=num_aux, post_norm=post_norm, dtype=dtype)
    speculative = {"method": "eagle3", "num_speculative_tokens": K}
    embed_tokens = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1))
    vllm_config = resolve(draft, write_target(folder / "target"), dtype, speculative)
    drafter = build(vllm_config, draft, dtype, embed_tokens)
    reference = Eagle3Reference.load(draft, drafter.model.embed_tokens.weight.data, torch.empty(0))
    return drafter, reference


def error(drafter, hidden, reference, expected):
    """hidden [T, H], expected logits [T, Vd]; the rest of the vocabulary must be -inf."""
    logits = drafter.compute_logits(hidden)
    assert torch.isneginf(logits).sum() == len(hidden) * (VOCAB - DRAFT_VOCAB)
    mine = logits[:, reference.target_ids].float()
    return float((mine - expected).abs().max() / expected.std())


@pytest.mark.usefixtures("single_process_group")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("post_norm", [False, True], ids=["pre_norm", "post_norm"])
@pytest.mark.parametrize("num_aux", [1, 3, 5])
@torch.inference_mode()
def test_rows_and_chain_equal_the_reference(tmp_path, num_aux, post_norm, dtype):
    drafter, reference = build_drafter(tmp_path, dtype, num_aux=num_aux, post_norm=post_norm)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, VOCAB, (ROWS + 1,), generator=generator)
    aux = [(3 * torch.randn(ROWS + 1, HIDDEN, generator=generator)).to(dtype) for _ in range(num_aux)]
    true_rows = reference.true_rows(tokens.tolist(), [a.float() for a in aux])

    fused = drafter.combine_hidden_states(torch.cat(aux, dim=-1)[:ROWS])
    hidden, feedback = drafter(tokens[1:], torch.arange(ROWS), fused)
    assert error(drafter, hidden, reference, torch.stack(true_rows[0])) < BOUND[dtype]

    # The chain from the last row: each step is fed its token and the previous step's feedback.
    start, cache = ROWS - 1, list(true_rows[2])
    g = true_rows[1][start]
    state = feedback[-1:]
    for step in range(1, K):
        token = int(torch.randint(0, VOCAB, (1,), generator=generator))
        expected, g = reference.row(token, g, start + step, cache)
        hidden, state = drafter(torch.tensor([token]), torch.tensor([start + step]), state)
        assert error(drafter, hidden, reference, expected[None]) < BOUND[dtype], f"chain step {step}"


@pytest.mark.usefixtures("single_process_group")
@torch.inference_mode()
def test_norm_output_changes_the_second_step_only(tmp_path):
    """A test that looks at one step cannot see the flag; this one fails if it is ignored."""
    drafter, reference = build_drafter(tmp_path, torch.float32, num_aux=3, post_norm=True)
    aux = [torch.randn(2, HIDDEN) for _ in range(3)]
    rows = reference.true_rows([1, 2], aux)
    pre_norm = replace(reference, norm_output=False)
    pre_rows = pre_norm.true_rows([1, 2], aux)
    assert torch.equal(rows[0][0], pre_rows[0][0])
    second = reference.row(3, rows[1][0], 1, list(rows[2]))[0]
    second_pre = pre_norm.row(3, pre_rows[1][0], 1, list(pre_rows[2]))[0]
    assert (second - second_pre).abs().max() > 0.1

    _, feedback = drafter(
        torch.tensor([2]), torch.tensor([0]), drafter.combine_hidden_states(torch.cat(aux, -1)[:1])
    )
    hidden, _ = drafter(torch.tensor([3]), torch.tensor([1]), feedback)
    assert error(drafter, hidden, reference, second[None]) < BOUND[torch.float32]
    assert error(drafter, hidden, reference, second_pre[None]) > BOUND[torch.float32]
