"""`vllm-eagle check` tells a cause once, and counts what follows from it."""

from __future__ import annotations

from tests.support.checkpoints import tiny_draft
from tests.support.engine import TINY
from vllm_eagle_ext.draft.inspection import CONSEQUENCES
from vllm_eagle_ext.draft.rules import RULES


def errors(result):
    return [
        line.split()[1].rstrip(":") for line in result.stdout.splitlines() if line.startswith("error ")
    ]


def test_wrong_width(check, tmp_path):
    draft = tiny_draft(tmp_path / "draft", hidden_size=96)
    result = check(draft)
    assert result.exit_code == 1
    assert errors(result) == ["target_width_fits"]
    assert 'to do:   its weights have another width: edit config.json: "hidden_size": 64' in (
        result.stdout
    )
    assert "further errors follow from it (--all shows them)" in result.stdout
    everything = check(draft, "--all")
    assert len(errors(everything)) > 10
    assert f"and {len(errors(everything)) - 1} further errors" in result.stdout


def test_a_draft_of_another_target_is_called_that(check):
    result = check(TINY / "postnorm", "--target", str(TINY / "hybrid_target"))
    assert result.exit_code == 1
    assert errors(result) == ["target_is_the_drafts_own"]
    assert "is 'probably another one'" in result.stdout
    assert "a vocabulary of 1536 (here 1600), at least 10 layers (here 8)" in result.stdout
    assert "aux_layers" not in result.stdout
    assert (
        "aux_layers" in check(TINY / "postnorm", "--target", str(TINY / "hybrid_target"), "--all").stdout
    )


def test_a_depth_alone_names_the_target_before_the_option(check, tmp_path, target):
    """Ids beyond the last layer may be read wrongly, or be another target's."""
    config = {"eagle_aux_hidden_state_layer_ids": [1, 7, 12], "use_aux_hidden_state": True}
    result = check(tiny_draft(tmp_path / "draft", eagle_config=config))
    assert errors(result) == ["aux_layer_ids_exist"]
    remedy = result.stdout.split("to do:")[1]
    assert remedy.index("the target it was trained for") < remedy.index("aux_layers")


def test_a_target_in_the_drafts_place_is_called_that(check):
    target = TINY / "target"
    result = check(target, "--target", str(target))
    assert result.exit_code == 1
    assert errors(result) == ["draft_is_no_plain_model"]
    assert "the draft is 'no draft: it has 12 layers and no fc'" in result.stdout


def test_independent_errors_are_all_told(check, tmp_path):
    """The vocabulary of another target, and norms that the weights lack."""
    config = {"vocab_size": 200, "norm_output": False}
    draft = tiny_draft(tmp_path / "draft", **config, eagle_config={"norm_output": True})
    assert {"draft_vocabulary_fits", "flags_agree"} <= set(errors(check(draft)))


def test_every_name_is_a_rules():
    names = {rule.name for rule in RULES}
    assert CONSEQUENCES.keys() <= names
    assert {rule for rules in CONSEQUENCES.values() for rule in rules} <= names
