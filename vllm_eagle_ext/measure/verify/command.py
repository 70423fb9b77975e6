# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle verify`."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import console, fail, json_object, refuse_reserved
from vllm_eagle_ext.errors import EagleExtError, SpeculativeConfigError
from vllm_eagle_ext.measure.verify.amount import QUICK, QUICK_ENGINE, USUAL

if TYPE_CHECKING:
    from vllm_eagle_ext.measure.verify.readings import Question
    from vllm_eagle_ext.measure.verify.request import VerifyRequest
    from vllm_eagle_ext.preflight.offline.run import CheckRequest


def verify(
    context: typer.Context,
    draft: parameters.Draft,
    target: parameters.NeededTarget,
    k: parameters.K = None,
    method: parameters.Method = None,
    revision: parameters.Revision = None,
    prompts: parameters.Prompts = None,
    dataset_path: parameters.DatasetPath = None,
    num_prompts: parameters.FirstPrompts = USUAL["num_prompts"],
    chat_template: parameters.ChatTemplate = None,
    thinking: parameters.Thinking = None,
    max_tokens: parameters.MaxTokens = USUAL["max_tokens"],
    concurrency: parameters.AtATime = 1,
    samples: parameters.Samples = USUAL["samples"],
    tie_gap: parameters.TieGap = None,
    reference: parameters.Reference = None,
    quick: parameters.Quick = False,
    gate_layouts: parameters.GateLayouts = False,
    feedback: parameters.Feedback = False,
    engine: parameters.Engine = "{}",
    eagle_ext: parameters.EagleExt = "{}",
    as_json: parameters.AsJson = False,
    out: parameters.JsonFile = None,
) -> None:
    """Run a draft and say whether it drafts as published, and changes nothing but the speed.

    Starts two engines one after the other on this machine, with and without the draft, a third for
    hybrid targets. Exits with 0 if nothing failed, with 1 if a check did, with 2 if it cannot be run.
    """
    try:
        _require_folder(out)
        answer = _task(gate_layouts=gate_layouts, feedback=feedback)
        code, text = answer(_request(_with_amount(context)), quiet=as_json)
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    _put(text, out, shown=as_json)
    raise typer.Exit(code)


def _put(text: str, out: Path | None, *, shown: bool) -> None:
    if shown:
        typer.echo(text)
    try:
        if out is not None:
            out.write_text(text + "\n")
    except OSError as error:
        fail(f"--out cannot be written: {error}")


def _task(*, gate_layouts: bool, feedback: bool) -> Callable[..., tuple[int, str]]:
    """What is to be found out, of a request."""
    from vllm_eagle_ext.measure.verify import readings

    if gate_layouts and feedback:
        raise SpeculativeConfigError(
            field="--gate-layouts and --feedback", value="both", allowed="one of them at a time",
            remedy="run --gate-layouts first, and give its answer in --eagle-ext to --feedback",
        )  # fmt: skip
    question = readings.GATE_LAYOUT if gate_layouts else readings.FEEDBACK if feedback else None
    return _verify if question is None else partial(_read, question)


def _with_amount(context: typer.Context) -> dict[str, Any]:
    """The options by name; with --quick, its amounts where none was typed."""
    given = dict(context.params)
    sources = {name: context.get_parameter_source(name) for name in QUICK if given["quick"]}
    untyped = [name for name, source in sources.items() if source and source.name == "DEFAULT"]
    return given | {name: QUICK[name] for name in untyped}


def _request(given: dict[str, Any]) -> VerifyRequest:
    """given: the options by name, as typed."""
    from vllm_eagle_ext.measure.prompts import read_texts, token_ids
    from vllm_eagle_ext.measure.verify.request import VerifyRequest
    from vllm_eagle_ext.preflight.offline.run import CheckRequest

    target, source = given["target"], given["prompts"]
    engine, ours = (
        json_object(given["engine"], "--engine"),
        json_object(given["eagle_ext"], "--eagle-ext"),
    )
    refuse_reserved(engine)
    engine = {**(QUICK_ENGINE if given["quick"] else {}), **engine}
    check = CheckRequest.for_engine(
        engine, draft=given["draft"], target=target, k=given["k"], method=given["method"],
        revision=given["revision"], options=ours,
    )  # fmt: skip
    check = _with_usual_k(check)
    texts = read_texts(
        source, count=given["num_prompts"], dataset_path=given["dataset_path"], target=target
    )
    found = token_ids(
        texts, target, source=source, chat_template=given["chat_template"],
        thinking=given["thinking"], trust_remote_code=bool(engine.get("trust_remote_code")),
    )  # fmt: skip
    same = ("max_tokens", "concurrency", "samples", "tie_gap", "reference", "quick")
    return VerifyRequest(
        check=check, engine=engine, prompts=found, **{name: given[name] for name in same}
    )


def _verify(request: VerifyRequest, *, quiet: bool) -> tuple[int, str]:
    from vllm_eagle_ext.measure.verify.run import run_verify
    from vllm_eagle_ext.measure.verify.table import Stages, print_report

    _require_scipy()
    with Logs() as kept:
        with Stages() as shown:
            report = run_verify(request, kept.folder, shown.stage)
        kept.passed = report.exit_code == 0
        if not quiet:
            print_report(report, console())
    return report.exit_code, report.to_json()


def _read(question: Question, request: VerifyRequest, *, quiet: bool) -> tuple[int, str]:
    from vllm_eagle_ext.measure.verify.readings import measure, require_open
    from vllm_eagle_ext.measure.verify.readings_table import print_answer
    from vllm_eagle_ext.measure.verify.table import Stages
    from vllm_eagle_ext.preflight.offline.run import run_check

    checked = run_check(request.check)
    require_open(question, checked.inspection, request)
    with Logs() as kept:
        with Stages() as shown:
            answer = measure(question, request, checked, kept.folder, shown.stage)
        kept.passed = answer.best is not None
    if not quiet:
        print_answer(answer, console())
    return 0 if answer.best else 1, json.dumps(answer.to_json(), indent=1)


def _with_usual_k(check: CheckRequest) -> CheckRequest:
    """K as it was trained for, where none is asked for."""
    from vllm_eagle_ext.preflight.offline.run import run_check
    from vllm_eagle_ext.preflight.offline.serve import usual_k

    return check if check.k else replace(check, k=usual_k(run_check(check).inspection.spec))


class Logs:
    """A folder for the engines' logs. It stays, and is named, unless all passed or no engine started."""

    passed = False

    def __enter__(self) -> Logs:
        self.folder = Path(tempfile.mkdtemp(prefix="vllm-eagle-verify-"))
        return self

    def __exit__(self, *_: object) -> None:
        if self.passed or not any(self.folder.iterdir()):
            shutil.rmtree(self.folder)
        else:
            typer.echo(f"The engines' logs: {self.folder}", err=True)


def _require_folder(out: Path | None) -> None:
    """Before engines start."""
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise SpeculativeConfigError(
            field="--out", value=str(out), allowed="a file in a folder that exists",
            remedy=f"create {out.parent}" if not out.is_dir() else "name a file in it",
        )  # fmt: skip


def _require_scipy() -> None:
    try:
        import scipy.stats  # noqa: F401
    except ImportError:
        raise SpeculativeConfigError(
            field="scipy", value=None, allowed="installed, for the test of distributions",
            remedy="install the package with its extra, as in pip install '.[bench]', or scipy alone",
        ) from None  # fmt: skip
