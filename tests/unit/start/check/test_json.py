"""`vllm-eagle check --json`."""

from __future__ import annotations

import json

import pytest

from tests.support.checkpoints import tiny_draft

KEYS = {
    "draft", "target", "spec", "left_to_vllm", "findings", "command", "exit_code", "platform",
    "recurrent_state", "not_looked_at", "download", "schema_version", "verdict", "files", "engine",
}  # fmt: skip


def test_json_of_a_draft_that_would_be_served(check, draft, target):
    result = check(draft, "--json")
    said = json.loads(result.stdout)
    assert result.exit_code == said["exit_code"] == 0
    assert said.keys() == KEYS
    assert (said["draft"], said["target"]) == (str(draft), str(target))
    assert said["spec"]["family"] == "post-norm"
    assert said["spec"]["aux_layers"]["layer_ids"] == [2, 3, 4]
    fired = [(finding["rule"], finding["severity"]) for finding in said["findings"]]
    # Three aux layers, post-norm: SpecForge may have meant something else by norm_output.
    assert (said["left_to_vllm"], fired) == (False, [("norm_output_is_unambiguous", "warning")])
    assert said["command"] == check(draft).stdout.splitlines()[-1]


def test_json_of_a_draft_that_would_be_refused(check, without_norms):
    result = check(without_norms, "--json")
    said = json.loads(result.stdout)
    assert result.exit_code == said["exit_code"] == 1
    assert said.keys() == KEYS
    assert said["command"] is None
    finding = next(f for f in said["findings"] if f["rule"] == "fc_norms_match_their_flag")
    assert finding.keys() == {
        "rule", "severity", "can_run", "follows_from", "field", "value", "allowed", "remedy",
        "message",
    }  # fmt: skip
    assert (finding["severity"], finding["value"]) == ("error", [])


@pytest.mark.parametrize(
    ("changes", "exit_code", "rules"),
    [
        ({"hidden_size": "wide"}, 1, ["config_is_well_formed", "vllm_says"]),
        ({"architectures": ["K3DSparkModel"]}, 0, []),
    ],
    ids=["cannot be made out", "passed through"],
)
def test_json_of_a_draft_without_a_spec(check, tmp_path, changes, exit_code, rules):
    result = check(tiny_draft(tmp_path / "draft", **changes), "--json")
    said = json.loads(result.stdout)
    assert result.exit_code == said["exit_code"] == exit_code
    assert said.keys() == KEYS
    assert said["spec"] is said["command"] is None
    assert said["left_to_vllm"] is not bool(rules)
    assert [finding["rule"] for finding in said["findings"]] == rules


@pytest.mark.parametrize(
    "keys",
    [
        {"x" * 3_000_000: 1},
        {"hidden_size": "x" * 3_000_000},
        {"hidden_size": [1] * 1_000_000},
        {"rope_parameters": {"rope_type": "x" * 3_000_000}},
        {"architectures": ["x" * 3_000_000]},
    ],
    ids=["key", "text", "list", "rope", "name"],
)
def test_what_a_stranger_states_is_bounded(check, tmp_path, keys):
    result = check(tiny_draft(tmp_path / "draft", **keys), "--json")
    assert json.loads(result.stdout)["findings"]
    assert len(result.stdout) < 50_000


def test_json_of_what_cannot_be_read(check, tmp_path, draft):
    for result in (
        check(tmp_path / "nothing", "--json"),
        check(draft, "--json", "--eagle-ext", '{"x": 1}'),
    ):
        said = json.loads(result.stdout)
        assert result.exit_code == said["exit_code"] == 2
        assert said.keys() == {"schema_version", "error", "exit_code"}
        assert "What to do: " in said["error"]
        assert result.stderr == ""
