"""`vllm-eagle check` for a release of vLLM: how it was tested, and what it takes."""

from __future__ import annotations

import pytest

from tests.support.drafts import valid_draft, write
from tests.unit.cli.output import refusal
from vllm_eagle_ext.preflight import foreseen


@pytest.mark.parametrize(
    ("release", "said"),
    [
        ("0.32", "run: all tests, on CPUs"),
        ("0.33.1", "run in parts: its Python files, over 0.32's compiled parts, on CPUs"),
    ],
)
def test_how_the_release_was_tested(check, draft, release, said):
    assert f"for vLLM {release} ({said})" in check(draft, "--vllm", release).stdout


def test_another_release_is_judged_by_its_own_keys_and_runners(check, draft, tmp_path):
    key = ("--speculative", '{"fly_window_size": 2}')
    assert check(draft, "-k", "3", *key, "--vllm", "0.33", "--quick").exit_code == 3
    refused = check(draft, "-k", "3", *key, "--vllm", "0.32", "--quick")
    assert "speculative_config.fly_window_size is 2" in refused.stdout
    without = write(valid_draft("no_aux"), tmp_path / "no_aux")
    forced = "VLLM_USE_V2_MODEL_RUNNER=0"
    assert forced in check(without, "--vllm", "0.32").stdout
    assert forced not in check(without, "--vllm", "0.33").stdout
    assert "error vllm_is_tested" in check(draft, "--vllm", "0.99").stdout
    assert "for vLLM 0.32 (run: " in check(draft, "--vllm", "v0.32+cpu").stdout
    for wrong in ("0.1", "", "dev"):
        assert f"--vllm is {wrong!r}. Allowed: a release from 0.32 on" in refusal(
            check(draft, "--vllm", wrong)
        )


def test_an_untested_vllm(check, draft, monkeypatch):
    """The draft's nested ids are read by this package alone."""
    monkeypatch.setattr(foreseen, "installed_vllm", lambda: "0.99.0")
    result = check(draft, "--platform", "auto", "--quick")
    assert result.exit_code == 1
    assert "error vllm_is_tested: vLLM version is '0.99.0'" in result.stdout
    permitted = ("--eagle-ext", '{"untested_vllm": true}')
    assert check(draft, "--platform", "auto", "--quick", *permitted).exit_code == 3
