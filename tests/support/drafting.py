"""The same draft through vLLM's module and through the reference: logits to compare, no engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.checkpoints import HIDDEN, LAYERS, VOCAB, write_target
from tests.support.drafter import build, resolve, resolve_for_v2
from tests.support.drafts import MASK_TOKEN, VLLMS, Draft, write
from tests.support.mla_reference import MlaReference
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.reference.dflash import DFlash2Reference, DFlashReference, DSparkReference
from vllm_eagle_ext.measure.reference.eagle3 import Eagle3Reference, read_tensors
from vllm_eagle_ext.memory.device import LoadedKernels
from vllm_eagle_ext.start.rules.weights import WEIGHTS_FIELD

Choices = tuple[torch.Tensor, torch.Tensor]  # scores [STEPS, C], target ids [STEPS, C]
ROWS, STEPS = 8, 4
# Bounds of `difference`. Eight-bit drafts run in bf16 and round activations to eight bits in each layer,
# the reference does neither: up to 0.052 over 24 drafts and both of vLLM's int8 kernels (0.038 in fp32).
# With the rows' scales of one projection in another order it is 0.13 and more.
BOUND, BOUND_QUANTISED = 1e-3, 0.1


@dataclass(frozen=True)
class Probe:
    """What a target of the tests hands to its draft, and the tokens that are fed."""

    tokens: torch.Tensor  # [ROWS + 1 + STEPS]
    layer_ids: torch.Tensor  # [LAYERS + 1, ROWS + 1, Ht]: the residual stream everywhere
    embed_tokens: torch.Tensor  # [V, H]
    lm_head: torch.Tensor  # [V, H]

    def aux(self, layer_ids: Sequence[int]) -> list[torch.Tensor]:
        return [self.layer_ids[b] for b in layer_ids or (LAYERS,)]


def make_probe(seed: int = 5) -> Probe:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    tokens = torch.randint(0, VOCAB - 1, (ROWS + 1 + STEPS,), generator=generator)
    # Streams of unlike size, so that a wrong layer or a dropped norm shows.
    scales = torch.linspace(0.5, 4, LAYERS + 1)[:, None, None]
    states = normal(LAYERS + 1, ROWS + 1, HIDDEN) * scales
    return Probe(tokens, states, normal(VOCAB, HIDDEN), normal(VOCAB, HIDDEN) * HIDDEN**-0.5)


def dtype_of(draft: Draft) -> torch.dtype:
    """fp32, but bf16 for eight-bit drafts: of a CPU with AMX, vLLM's int8 kernel takes no fp32."""
    return torch.bfloat16 if draft.config.get("quantization_config") else torch.float32


def bound_of(family: str) -> float:
    return BOUND_QUANTISED if family == "quantised" else BOUND


def resolve_draft(
    folder: Path, draft: Draft, *, as_bin: bool = False, online: str | None = None, **options: Any
) -> tuple[Any, Path]:
    """The engine's config with this draft, resolved by the preflight, and where the draft lies.

    Args:
        online: how vLLM is to quantise the draft while it loads it.
    """
    path = write(replace(draft, tensors={}) if as_bin else draft, folder / "draft")
    speculative: dict[str, Any] = {"method": draft.method, "num_speculative_tokens": draft.k}
    if online is not None:
        speculative["quantization"] = online
    kind = draft.config.get("speculators_model_type")
    if kind == "peagle" or (kind is None and draft.config.get("architectures") == ["PEagleDraftModel"]):
        speculative["parallel_drafting"] = True
    target = write_target(folder / "target")
    made_by = resolve_for_v2 if is_vllms(draft) else resolve
    dtype = torch.bfloat16 if online else dtype_of(draft)
    return made_by(path, target, dtype, speculative, **options), path


def is_vllms(draft: Draft) -> bool:
    """Whether vLLM's own class serves it, which is drafted with on its V2 runner alone."""
    named = draft.config.get("architectures") == ["DFlash2DraftModel"]
    return draft.method == "dspark" or named


@contextmanager
def skipping_without_a_kernel() -> Iterator[None]:
    """Skip a test whose draft a start refuses because this CPU has no kernel for its weights."""
    try:
        yield
    except SpeculativeConfigError as refused:
        kernels = LoadedKernels()
        if refused.field != WEIGHTS_FIELD or (kernels.packed_weights and kernels.exact_int8):
            raise
        pytest.skip(str(refused))


def load(
    folder: Path, draft: Draft, *, as_bin: bool = False, **options: Any
) -> tuple[Any, Sequence[int], Path, Probe]:
    """The registered drafter, the aux layers that runners will capture, its file, a probe.

    Skips the test where a start refuses the draft's quantisation on this CPU.
    """
    with skipping_without_a_kernel():
        config, path = resolve_draft(folder, draft, as_bin=as_bin, **options)
    if as_bin:  # only the preflight sees another kind of file
        path = write(draft, folder / "safetensors")
    hf_config = config.speculative_config.draft_model_config.hf_config
    probe = make_probe()
    dtype = torch.bfloat16 if options.get("online") else dtype_of(draft)
    drafter = build(config, path, dtype, probe.embed_tokens, probe.lm_head)
    return drafter, getattr(hf_config, "eagle_aux_hidden_state_layer_ids", ()), path, probe


@torch.inference_mode()
def module_logits(drafter: Any, family: str, layer_ids: Sequence[int], probe: Probe) -> torch.Tensor:
    """[ROWS + STEPS - 1, V]; of DFlash, DFlash2 and DSpark drafts [STEPS, V]."""
    states = torch.cat(probe.aux(layer_ids), dim=-1)[:ROWS]
    states = states.to(drafter.model.embed_tokens.weight.dtype)
    if family in VLLMS:
        from tests.support.second_head_scores import of_vllm  # which takes this module's probe

        return over_the_vocabulary(of_vllm(drafter, family, family == "dspark", states, probe))
    if family.startswith("dflash"):
        context = drafter.combine_hidden_states(states)
        drafter.precompute_and_store_context_kv(context, torch.arange(ROWS), torch.arange(ROWS))
        block = torch.cat([probe.tokens[:1], torch.full((STEPS,), MASK_TOKEN)])
        hidden = drafter(block, torch.arange(ROWS, ROWS + 1 + STEPS))
        return drafter.compute_logits(hidden)[1:]
    hidden, feedback = drafter(
        probe.tokens[1 : ROWS + 1], torch.arange(ROWS), drafter.combine_hidden_states(states)
    )
    logits, state = [drafter.compute_logits(hidden)], feedback[-1:]
    for step in range(1, STEPS):
        token = probe.tokens[ROWS + step : ROWS + step + 1]
        if family == "p-eagle":
            token = torch.tensor([MASK_TOKEN])
            state = drafter.combine_hidden_states(drafter.mask_hidden)
        hidden, state = drafter(token, torch.tensor([ROWS - 1 + step]), state)
        logits.append(drafter.compute_logits(hidden))
    return torch.cat(logits)


def over_the_vocabulary(choices: Choices) -> torch.Tensor:
    """[STEPS, V]; an id that is no candidate is -inf."""
    scores, ids = choices
    return torch.full((len(scores), VOCAB), float("-inf")).scatter(1, ids, scores.float())


@torch.inference_mode()
def reference_logits(folder: Path, family: str, layer_ids: Sequence[int], probe: Probe) -> torch.Tensor:
    """The same, from the file and the formulas."""
    if family in VLLMS:
        return over_the_vocabulary(_reference_choices(folder, family, layer_ids, probe))
    if family.startswith("dflash"):
        reference = DFlashReference.load(folder, probe.embed_tokens, probe.lm_head)
        states = [state[:ROWS] for state in probe.aux(layer_ids)]
        return reference.logits(reference.context(states), int(probe.tokens[0]), STEPS)
    kind = MlaReference if family == "mla" else Eagle3Reference
    draft = kind.load(folder, probe.embed_tokens, probe.lm_head)
    rows, feedback, cache = draft.true_rows(probe.tokens[: ROWS + 1].tolist(), probe.aux(layer_ids))
    logits, g = list(rows), feedback[-1]
    for step in range(1, STEPS):
        token = int(probe.tokens[ROWS + step])
        if family == "p-eagle":
            token, g = MASK_TOKEN, draft.fuse(draft.weights["mask_hidden"].flatten().chunk(3))
        step_logits, g = draft.row(token, g, ROWS - 1 + step, cache)
        logits.append(step_logits)
    scattered = torch.full((len(logits), VOCAB), float("-inf"))
    scattered[:, draft.target_ids] = torch.stack(logits)
    return scattered


def _reference_choices(folder: Path, family: str, layer_ids: Sequence[int], probe: Probe) -> Choices:
    kind = DFlash2Reference if family == "dflash2" else DSparkReference
    reference: Any = kind.load(folder, probe.embed_tokens, probe.lm_head)
    if family == "dspark-speculators":
        d2t = read_tensors(folder)["d2t"]
        reference = replace(
            reference,
            lm_head=reference.weights["lm_head.weight"],
            target_ids=d2t + torch.arange(len(d2t)),
            samples_anchor=False,
        )
    states = [state[:ROWS] for state in probe.aux(layer_ids)]
    return reference.choices(reference.context(states), int(probe.tokens[0]), STEPS)


def difference(mine: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest error of a logit over the standard deviation of the logits; inf: another vocabulary."""
    finite = torch.isfinite(reference)
    if not torch.equal(torch.isfinite(mine), finite):
        return float("inf")
    return float((mine.float() - reference)[finite].abs().max() / reference[finite].std())


def apart_from_reference(
    folder: Path, family: str, draft: Draft, dequantised: Draft | None = None, **options: Any
) -> float:
    """The `difference` of a draft from the reference of its own file, or of the dequantised draft."""
    drafter, layer_ids, path, probe = load(folder, draft, **options)
    mine = module_logits(drafter, family, layer_ids, probe)
    if dequantised is not None:
        path = write(dequantised, path.parent / "dequantised")
    return difference(mine, reference_logits(path, family, layer_ids, probe))
