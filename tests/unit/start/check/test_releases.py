"""`vllm-eagle check` for a release of vLLM: how it was tested, and which runner it needs."""

from __future__ import annotations

from tests.support.drafts import valid_draft, write
from tests.unit.cli.output import refusal


def test_another_release_has_runners_of_its_own(check, draft, tmp_path):
    without = write(valid_draft("no_aux"), tmp_path / "no_aux")
    forced = "VLLM_USE_V2_MODEL_RUNNER=0"
    assert forced in check(without, "--vllm", "0.32").stdout
    assert forced not in check(without, "--vllm", "0.33").stdout
    assert "for vLLM 0.32 (run: " in check(draft, "--vllm", "v0.32+cpu").stdout
    assert "installed here, not 0.99" in check(draft, "--vllm", "0.99").stdout
    for wrong in ("0.1", "", "dev"):
        assert f"--vllm is {wrong!r}. Allowed: a release from 0.32 on" in refusal(
            check(draft, "--vllm", wrong)
        )
