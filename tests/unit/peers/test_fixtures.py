"""Files that other projects' savers wrote, and what their own forwards draft: no peer is needed.

tests/peers/fixtures.py writes them; each folder's provenance.json says by which release and command.
"""

from __future__ import annotations

import hashlib
import json

import pytest

from tests.peers.chains import Chains, Comparison, compare
from tests.peers.ours import checked, drafted
from tests.support.engine import ROOT

FOLDER = ROOT / "tests/fixtures/peers"
LAYERS, FEEDBACK = "aux_layers_are_stated", "norm_output_is_unambiguous"
ROPE, LENGTH = "rope_matches_the_target", "trained_length_covers_max_model_len"
# Of each file, the family and the rules that warn, without an option.
VERDICTS = {
    "speculators_eagle3": ("post-norm", set()),
    "speculators_peagle": ("p-eagle", set()),
    "speculators_dflash_yarn": ("dflash", {ROPE, LENGTH}),
    "speculators_dflash2": ("dflash2", set()),
    "speculators_dspark": ("dspark", set()),
    "specforge_eagle31": ("post-norm", {LAYERS, FEEDBACK}),
    "specforge_peagle": ("p-eagle", {LAYERS}),
    "specforge_full_vocabulary": ("native", {LAYERS}),
    "angelslim_eagle3": ("native", set()),
}
# One block, or one pass of masks: no token depends on those before it.
AT_ONCE = ("speculators_peagle", "speculators_dflash_yarn", "specforge_peagle")


def provenance(name: str) -> dict:
    return json.loads((FOLDER / name / "provenance.json").read_text())


def target_of(name: str) -> str:
    return str(ROOT / provenance(name)["target"])


def test_every_file_is_tested():
    assert {path.name for path in FOLDER.iterdir()} == set(VERDICTS)


@pytest.mark.parametrize("name", VERDICTS)
def test_the_file_is_the_one_that_was_written(name):
    said = provenance(name)
    weights = (FOLDER / name / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == said["sha256"]
    assert said["written_by"].split()[0] in name
    assert sum(path.stat().st_size for path in (FOLDER / name).iterdir()) < 1.05 * 2**20


@pytest.mark.parametrize("name", VERDICTS)
def test_check(name):
    family, warnings = VERDICTS[name]
    inspection = checked(FOLDER / name, target_of(name)).inspection
    assert [str(finding.problem) for finding in inspection.errors] == []
    assert {f.rule for f in inspection.findings if f.severity == "warning"} == warnings
    assert inspection.spec.family.name == family


def compared(name: str, options: dict) -> Comparison:
    peer, text = Chains.load(FOLDER / name / "expected.json"), tuple(provenance(name)["text"])
    spec = checked(FOLDER / name, target_of(name), options).inspection.spec
    target = target_of(name)
    own = drafted(spec, FOLDER / name, text, target, peer.ids.shape[1])
    return compare(peer, own, chained=name not in AT_ONCE)


@pytest.mark.parametrize("name", VERDICTS)
def test_the_reference_drafts_as_the_writers_own_forward(name):
    found = compared(name, provenance(name)["options"])
    assert found.compared > 120
    assert found.is_same, found


def test_what_the_file_does_not_say_is_the_options():
    """SpecForge 0.2.0 feeds back the raw state, newer releases the normed one; the files are alike."""
    assert not compared("specforge_eagle31", {}).is_same
