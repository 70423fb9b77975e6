"""Drafts where vLLM takes names from ModelScope: a start and `check` look at them as always."""

from __future__ import annotations

import shutil
from functools import partial

import pytest

from tests.support.described import inspected
from tests.support.engine import TINY
from tests.support.modelscope_cache import place, provide, remove
from tests.unit.start.configs import DRAFTER, engine_args, speculative_config
from vllm_eagle_ext.errors import EagleExtError, UnsupportedDraftError
from vllm_eagle_ext.start.check import CheckRequest, run_check

NAME = "owner/draft"


@pytest.fixture(autouse=True, params=["True", " 1 "])
def _asked_for(request, monkeypatch):
    import vllm.engine.arg_utils  # noqa: F401 - which needs the library where the variable is set

    monkeypatch.setenv("VLLM_USE_MODELSCOPE", request.param)


def check(target, draft, cache=None):
    asked = {"draft": str(draft), "target": str(target), "engine": {"download_dir": cache}}
    return run_check(CheckRequest(platform="cpu", options={}, **asked))


def looked_at(draft, cache):
    """What a start looks at before vLLM builds its config, which would ask ModelScope for a name."""
    arguments = {"download_dir": cache}
    given = engine_args(
        TINY / "target", draft, options={"gate_layout": "interleaved"}, arguments=arguments
    )
    return inspected(given)


def test_a_folder_is_served_by_this_package():
    options = {"gate_layout": "interleaved"}
    config = speculative_config(TINY / "target", TINY / "gated", options=options)
    assert config.draft_model_config.architectures == [DRAFTER]


def test_a_folder_is_refused_by_a_start_and_by_check(target, without_norms):
    with pytest.raises(UnsupportedDraftError) as refused:
        speculative_config(target, without_norms)
    errors = check(target, without_norms).inspection.errors
    assert errors
    assert all(error.problem.field in str(refused.value) for error in errors)


def test_a_name_is_read_from_the_librarys_cache(tmp_path, monkeypatch):
    provide(monkeypatch)
    shutil.copytree(TINY / "gated", place(tmp_path, NAME))
    case = looked_at(NAME, str(tmp_path)).case
    assert case is not None
    assert case.spec.gate is not None
    assert check(TINY / "target", NAME, str(tmp_path)).files.folder == place(tmp_path, NAME)


@pytest.mark.parametrize(
    ("library", "remedy"),
    [(provide, "run `modelscope download` with it first"), (remove, "install modelscope")],
)
def test_a_name_that_is_not_there_is_refused(library, remedy, tmp_path, monkeypatch):
    """It would go unchecked to vLLM's own classes, which load a gated draft in part."""
    library(monkeypatch)
    said = []
    for look in (looked_at, partial(check, TINY / "target")):
        with pytest.raises(EagleExtError, match=remedy) as refused:
            look(NAME, str(tmp_path))
        said.append(str(refused.value).partition(". ")[2])
    assert said[0] == said[1]
    assert "VLLM_USE_MODELSCOPE is set" in said[0]
