"""Synthetic acceptance on a CPU, and what of vLLM makes it necessary."""

from __future__ import annotations

import inspect
import types

import pytest
import torch

from vllm_eagle_ext import compat


@pytest.mark.parametrize("kernel", ["greedy", "random"])
def test_vllm_refuses_a_synthetic_acceptance_on_a_cpu(kernel):
    """As long as this holds, `add_synthetic_acceptance` is needed."""
    from vllm.utils import cpu_triton_utils

    stand_in = getattr(cpu_triton_utils, f"_rejection_{kernel}_sample_kernel_impl")
    needed = [p for p in inspect.signature(stand_in).parameters.values() if p.default is p.empty]
    with pytest.raises(AssertionError, match="Synthetic acceptance not supported"):
        stand_in(*[None] * len(needed), SYNTHETIC_MODE=True)


def test_drafts_are_accepted_at_the_asked_rates():
    """By their logits: the target's only choice, or none of its choices. Two drafts, four, or none."""
    counts = [2, 4, 0] * 5000
    drafts = torch.randint(0, 8, (sum(counts),))
    drafts[-1] = -1  # a place without a draft
    logits = torch.randn(len(drafts), 8)
    logits[torch.arange(len(drafts)), drafts] = 3  # the target would choose most of them
    module = types.ModuleType("sampler")
    module.generate_uniform_probs = lambda count, *_: torch.rand(count, dtype=torch.float64)
    module.rejection_sample = lambda *args, **kwargs: (args[5].softmax(-1), kwargs)
    compat._wrap_rejection(module)
    places = torch.cat([torch.arange(count) for count in counts])

    def sample(**kwargs):
        sampling = types.SimpleNamespace(generators={})
        return module.rejection_sample(
            drafts, counts, 4, None, None, logits.clone(), None, sampling, **kwargs
        )

    rates = torch.tensor([0.75, 0.5, 1.0, 0.0])
    probs, others = sample(synthetic_mode=True, synthetic_conditional_rates=rates, use_fp64_gumbel=False)
    assert others == {"use_fp64_gumbel": False}
    chances = probs[torch.arange(len(drafts)), drafts]
    assert set(chances[:-1].tolist()) == {0.0, 1.0}
    drawn = [chances[:-1][places[:-1] == place].mean().item() for place in range(4)]
    assert drawn == pytest.approx(rates.tolist(), abs=0.02)
    assert probs[-1, 0] == 0
    standard, _ = sample(synthetic_mode=False, synthetic_conditional_rates=None)
    assert torch.equal(standard, logits.softmax(-1))
