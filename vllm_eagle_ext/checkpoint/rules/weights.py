# SPDX-License-Identifier: Apache-2.0
"""Rules about the values of weights, where they were read: `vllm-eagle check --weights`.

Scale: weights of trained transformers have a root mean square of 0.005 to 1 and hardly a value beyond
100, norms up to some hundreds; float16, in which many are published, ends at 65504. So that no draft
that was trained trips, what is told lies outside by orders of magnitude: bytes of another dtype read
as this one, damaged files, or a training that diverged.
"""

from __future__ import annotations

from collections.abc import Iterable

from vllm_eagle_ext.checkpoint.case import Case
from vllm_eagle_ext.checkpoint.findings import Problem, Severity, rule

LARGEST, LARGEST_RMS, SMALLEST_RMS = 1e4, 1e3, 1e-8
_AGAIN = "download the file again, or ask the publisher"


@rule(Severity.ERROR)
def weights_are_finite(case: Case) -> Iterable[Problem]:
    for name, survey in case.files.surveys.items():
        # Small tensors are read always, and have a rule of their own.
        if survey.non_finite and name not in case.files.values:
            yield Problem(
                field=f"values of {case.files.tensors[name].published}",
                value=f"{survey.non_finite} infinite or not a number",
                allowed="finite numbers",
                remedy=f"{_AGAIN}: training diverged",
            )


@rule(Severity.WARNING)
def weights_are_not_all_zero(case: Case) -> Iterable[Problem]:
    """Biases may be; a weight that is leaves nothing of what it is multiplied with."""
    for name, survey in case.files.surveys.items():
        if survey.is_zero and name.endswith((".weight", ".qweight", ".weight_packed")):
            yield Problem(
                field=f"values of {case.files.tensors[name].published}",
                value="zero, all of them",
                allowed="trained numbers; with these the draft is expected to guess",
                remedy=f"{_AGAIN}: a download may have been cut short",
            )


@rule(Severity.WARNING)
def weights_have_a_usual_scale(case: Case) -> Iterable[Problem]:
    for name, survey in case.files.surveys.items():
        if not name.endswith(".weight") or survey.is_zero:
            continue
        is_large = survey.largest > LARGEST or survey.rms > LARGEST_RMS
        if is_large or 0 < survey.rms < SMALLEST_RMS:
            yield Problem(
                field=f"values of {case.files.tensors[name].published}",
                value=f"up to {survey.largest:.3g}, {survey.rms:.3g} in the root mean square",
                allowed=f"up to {LARGEST:g}, and {SMALLEST_RMS:g} to {LARGEST_RMS:g} in the root mean "
                "square; trained weights lie far inside",
                remedy=f"{_AGAIN}: these may be bytes of another dtype",
            )


RULES = (weights_are_finite, weights_are_not_all_zero, weights_have_a_usual_scale)
