"""`vllm-eagle check` and what decides how many tokens a step drafts."""

from __future__ import annotations

import pytest

from tests.support.drafts import valid_draft, write
from tests.unit.cli.output import serve_line


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ("--speculative", '{"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 32, 2]]}'),
            "num_speculative_tokens_per_batch_size is [[1, 8, 4], [9, 32, 2]]",
        ),
        (("--speculative", '{"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 32, 0]]}'), None),
        ((), None),
    ],
    ids=str,
)
def test_lengths_of_drafts_that_are_made_in_parallel(check, tmp_path, asked, said):
    """On a CPU, so on V1, which makes K tokens whatever the step asks for; with 0 it reads none."""
    parallel = write(valid_draft("p-eagle"), tmp_path / "parallel")
    result = check(parallel, "-k", "4", "--platform", "cpu", *asked)
    assert result.exit_code == int(said is not None), result.stdout
    assert ("shorter_drafts_stay_apart" in result.stdout) is (said is not None)
    assert said is None or said in result.stdout


def test_a_schedule_is_checked_and_printed(check, draft):
    schedule = '{"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 32, 0]]}'
    result = check(draft, "-k", "4", "--speculative", schedule)
    assert result.exit_code == 0
    printed = serve_line(result)[1]["--speculative-config"]
    assert printed["num_speculative_tokens_per_batch_size"] == [[1, 8, 4], [9, 32, 0]]
