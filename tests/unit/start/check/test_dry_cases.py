"""`check` says what a start says, of every case of tests/support/start_cases.py: both are asked, each in
a fork of a warm process."""

from __future__ import annotations

import pytest

from tests.support import warm_child
from tests.support.start_cases import StartCase, start_cases
from vllm_eagle_ext.draft import Severity
from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.start import dry
from vllm_eagle_ext.start.check import CheckRequest, run_check
from vllm_eagle_ext.start.serve import serve_environment

OURS = ("max_model_len", "tensor_parallel_size")  # options of the check; others follow after --


def checked(case: StartCase, platform: str) -> tuple[str, list[str], dict[str, str]]:
    """The verdict, the errors, and the variables of the command that was judged."""
    keywords = case.checked(platform)
    engine = {key: value for key, value in case.engine.items() if key in OURS}
    others = {key: value for key, value in case.engine.items() if key not in OURS}
    keywords |= {"engine": engine, "method": None if "method" in case.speculative else case.method}
    try:
        result = run_check(CheckRequest(**keywords))
        final = dry.Final(result, dry.ask_engine(result, warm_child.words_of(others)))
    except EagleExtError as error:
        return "refused", [str(error)], {}
    errors = [str(f.problem) for f in final.findings if f.severity == Severity.ERROR]
    verdict = final.verdict if final.answer.is_asked else final.answer.why
    return verdict, errors, serve_environment(result)


@pytest.mark.promise("`check` says what a start would say")
@pytest.mark.parametrize("platform", [pytest.param("cpu", marks=pytest.mark.full), "cuda"])
def test_check_says_what_a_start_says(tmp_path, platform):
    child = warm_child.of_device({"cpu": None, "cuda": "h100"}[platform])
    wrong, silent, count = [], [], 0
    for case in start_cases(tmp_path):
        keywords = case.started()
        if platform == "cuda" and "enable_prefix_caching" not in case.engine:
            keywords.pop("enable_prefix_caching", None)
        verdict, errors, settings = checked(case, platform)
        started = child.start(keywords, settings)
        count += 1
        if verdict != ("served" if started["served"] else "refused"):
            wrong.append(f"{case.name}: check {verdict}, start {started['error'][:300]}")
        first = started["error"].split("\n")[0].removeprefix("vllm-eagle-ext: ")
        if started["ours"] and not any(error.startswith(first[:200]) for error in errors):
            silent.append(f"{case.name}: {first[:200]} is not among {errors}")
    assert count > 150
    assert not wrong + silent, "\n".join(wrong + silent)
