"""What a step launches outside the model does not grow with the number of KV-cache groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.step_launches import LAUNCHES_MORE, STEPS, settings
from benchmarks.step_metadata import launches
from tests.support.engine import has_gpu

if has_gpu():
    pytest.skip("counts what a device would be given, without one", allow_module_level=True)

# More in a step, whatever the number of groups: the gather of state blocks, of others' in a mixed batch,
# plan, states, conv states, vLLM's align kernel and its input.
COMMIT = ("_plan", "_apply_states", "_move_conv_states")
ALIGN = "_postprocess_recoverssm_align_kernel"


def test_the_published_pairs_have_these_groups():
    assert sorted(setting.groups for setting in settings().values()) == [3, 4, 30, 48]


@pytest.mark.promise("a step launches as much at any number of KV-cache groups")
@pytest.mark.parametrize("step", STEPS)
def test_launches_of_a_step(step):
    few, many = (
        next(replace(case, **STEPS[step]) for case in settings().values() if case.groups == groups)
        for groups in (3, 48)
    )
    counts = {case.groups: launches(case, replays=True) for case in (few, many)}
    print(f"\n{step}: {counts[48].total()} launches; {dict(counts[48])}")
    assert counts[3] == counts[48]
    ours = counts[48]
    assert ours["_gather_blocks"] == (2 if many.prompts else 1)
    assert [ours[name] for name in COMMIT] == [1, 1, 1]
    assert ours[ALIGN] == (many.mode == "align")
    for case in (few, many):
        stock = launches(case, replays=False).total()
        assert ours.total() <= stock + LAUNCHES_MORE, case.groups
