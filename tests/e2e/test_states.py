"""What the drafter is handed is the Hugging Face model's residual stream entering the named layers."""

from __future__ import annotations

import pytest
import torch

from tests.support.dense import FLOAT32, POSTNORM_AUX_LAYERS, dense
from tests.support.hybrid import started, with_log
from vllm_eagle_ext.measure.reference.published import residual_stream

pytestmark = [pytest.mark.e2e, pytest.mark.full]

# Engine in bf16 against Hugging Face in fp32: the error of a whole state over its norm. Rounding adds
# up layer by layer; neighbouring layers differ by 0.1 and more.
BOUND = 0.03


def errors(result, target, prompt, layer_ids):
    captured = torch.tensor(result["states"]).chunk(len(layer_ids), dim=-1)
    expected = residual_stream(target, prompt, layer_ids)
    pairs = zip(captured, expected, strict=True)
    worst = [float(((a - b).norm(dim=-1) / b.norm(dim=-1)).max()) for a, b in pairs]
    print(dict(zip(layer_ids, (round(e, 4) for e in worst), strict=True)))
    return worst


def test_aux_layers_from_embeddings_to_before_the_final_norm(target, prompts):
    n = target.config.num_hidden_layers
    layer_ids = (0, 2, n // 2, n - 3, n)
    run = dense(
        "run",
        "postnorm",
        prompts=prompts[:1],
        max_tokens=1,
        state_prompt=prompts[0],
        options={"aux_layers": list(layer_ids)},
    )
    results, log = with_log([run])
    assert max(errors(results["run"], target, prompts[0], layer_ids)) < BOUND
    assert "[0, 2, 6, 9, 12] of 12" in log
    # The bound tells layers apart: each neighbour is far outside.
    stream = residual_stream(target, prompts[0], range(n + 1))
    steps = [
        float(((a - b).norm(dim=-1) / b.norm(dim=-1)).max())
        for a, b in zip(stream, stream[1:], strict=False)
    ]
    assert min(steps) > 3 * BOUND


@pytest.mark.long
@pytest.mark.v2
def test_v2_captures_the_same_five(v2, target, prompts):
    assert max(errors(v2[0]["postnorm"], target, prompts[0], POSTNORM_AUX_LAYERS)) < BOUND


def test_transformers_class_of_a_target_feeds_the_same_drafts(prompts):
    """What `target_hands_out_its_states` advises: vLLM's class for transformers' models."""
    common = {"prompts": prompts[:6]}
    other = dense("other", "postnorm", engine_args=FLOAT32 | {"model_impl": "transformers"}, **common)
    results = started([dense("own", "postnorm", engine_args=FLOAT32, **common), other])
    assert results["own"]["tokens"] == results["other"]["tokens"]
    assert results["own"]["counters"] == results["other"]["counters"]
    assert results["own"]["counters"]["spec_decode_num_accepted_tokens"] > 200
