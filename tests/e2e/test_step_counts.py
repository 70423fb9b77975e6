"""Python calls and torch operations of a decode step, ours against stock vLLM: counts, no times.

Every draft is accepted, so that all engines walk through the same steps. A pair is served with the same
engine settings, with this package and without.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest

from tests.support.batches import Engine, run_engines
from tests.support.dense import POSTNORM_AUX_LAYERS, STOCK
from tests.support.engine import TINY, has_gpu
from tests.support.step_counts import STEPS, WASTED_CALLS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(has_gpu(), reason="counts what a CPU runs: a GPU has none of its workarounds"),
]

K = 3
PROMPTS = [[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]]
MORE_CALLS = 0.02
# Of a step. vLLM norms the keys of all draft layers by one call, and its kernel for a CPU reads
# the first layer's weights for all: ours calls it for each of the two layers.
ADDED = {"dflash": {"_C.rms_norm.default": 1, "aten.select.int": 4, "aten.unbind.int": 1}}
# Replay on a CPU commits the accepted rows of six layers by small operations, which a GPU does in one
# kernel. Which ones depends on the CPU's instructions: measured +.155 and +.274 with AVX-512.
REPLAYS_MORE = {"calls": 0.18, "operations": 0.33}


@pytest.fixture(scope="module")
def postnorm(tmp_path_factory):
    """The draft with its layer ids in both places where stock looks: V2 fails without those on top."""
    folder = tmp_path_factory.mktemp("drafts") / "postnorm"
    shutil.copytree(TINY / "postnorm", folder)
    config = json.loads((folder / "config.json").read_text())
    for place in (config, config["eagle_config"]):
        place["eagle_aux_hidden_state_layer_ids"] = list(POSTNORM_AUX_LAYERS)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(
    scope="module",
    params=[
        "v1",
        pytest.param("v2", marks=pytest.mark.v2),
    ],
)
def counts(request, postnorm):
    """Served by -> pair -> "calls" or "operations" -> name -> number in STEPS steps."""
    drafts = {
        "native": ("eagle3", TINY / "native", TINY / "target"),
        "postnorm": ("eagle3", postnorm, TINY / "target"),
        "dflash": ("dflash", TINY / "dflash", TINY / "hybrid_target"),
    }

    def engine(pair, name=None, **options):
        method, draft, target = drafts[pair]
        speculative = {"method": method, "model": str(draft), "num_speculative_tokens": K}
        speculative |= {"rejection_sample_method": "synthetic"}
        speculative |= {"synthetic_acceptance_rates": [1.0] * K}
        return Engine(
            name or pair, [], speculative, {"disable_log_stats": True}, options, target,
            None, use="tests.support.step_counts", job={"prompts": PROMPTS},
        )  # fmt: skip

    dense = [engine("native"), engine("postnorm")]
    ours = [engine("dflash", hybrid_state="per_token"), engine("dflash", "replay")]
    return {
        "stock": run_engines([*dense, engine("dflash")], request.param, **STOCK),
        "ours": run_engines([*dense, *ours], request.param),
    }


def added(counts, name, what, stock=None):
    """What ours has more of in a step, or less, by name."""
    extra = Counter(counts["ours"][name][what])
    extra.subtract(counts["stock"][stock or name][what.partition(",")[0]])
    return {each: number / STEPS for each, number in extra.items() if number}


def more(counts, name, what, stock=None):
    """The same as a share of stock's."""
    plain = sum(counts["stock"][stock or name][what.partition(",")[0]].values()) / STEPS
    share = sum(added(counts, name, what, stock).values()) / plain
    print(f"\n{name}, {what}: stock {plain:g}, ours {share:+.4f}")
    return share


@pytest.mark.parametrize("name", ["native", "postnorm", "dflash"])
class TestAgainstStock:
    def test_a_step_makes_no_more_calls(self, counts, name):
        assert more(counts, name, "calls") <= MORE_CALLS, added(counts, name, "calls")

    def test_a_step_runs_no_other_operations(self, counts, name):
        more(counts, name, "operations")
        assert added(counts, name, "operations") == ADDED.get(name, {})

    def test_one_operation_too_many_is_seen(self, counts, name):
        wasted = Counter(added(counts, name, "operations, wasted"))
        wasted.subtract(ADDED.get(name, {}))
        assert {each: number for each, number in wasted.items() if number} == {"aten.add_.Tensor": 1}

    def test_too_many_calls_are_seen(self, counts, name):
        assert more(counts, name, "calls, wasted") > MORE_CALLS
        wasted = added(counts, name, "calls, wasted")
        assert wasted["tests/support/step_counts.py:_idle"] == WASTED_CALLS


@pytest.mark.parametrize("what", REPLAYS_MORE)
def test_replay_adds_its_commit(counts, what):
    assert more(counts, "replay", what, stock="dflash") <= REPLAYS_MORE[what]
