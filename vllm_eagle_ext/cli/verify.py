# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle verify` as typed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import typer

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import console, fail, json_object, json_text, require_engine
from vllm_eagle_ext.errors import EagleExtError, SpeculativeConfigError

if TYPE_CHECKING:
    from vllm_eagle_ext.measure.verify.readings import Question
    from vllm_eagle_ext.measure.verify.request import VerifyRequest


def verify_draft(
    context: typer.Context,
    draft: parameters.Draft,
    target: parameters.Target = None,
    k: parameters.K = None,
    method: parameters.Method = None,
    revision: parameters.Revision = None,
    target_revision: parameters.TargetRevision = None,
    prompts: parameters.Prompts = None,
    num_prompts: parameters.FirstPrompts = None,
    chat_template: parameters.ChatTemplate = None,
    thinking: parameters.Thinking = None,
    max_tokens: parameters.TextTokens = None,
    concurrency: parameters.AtATime = 1,
    samples: parameters.Samples = None,
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
    """Run a draft and test that it changes only the speed.

    It compares texts with and without the draft, and acceptance with the published computation. It
    starts two engines on this machine one after the other, and a third one for hybrid targets.

    Exits with 0 if nothing failed, with 1 if a check failed, and with 2 if it cannot run.
    """
    # Refuse what cannot be done, before an engine starts.
    require_engine(as_json=as_json)
    from vllm_eagle_ext.measure.outputs import require_writable, write_whole
    from vllm_eagle_ext.measure.verify.request import read_verify_request

    try:
        if out is not None:
            require_writable(out)
        # Run the checks, or only the comparison that was asked for.
        answer = _task(gate_layouts=gate_layouts, feedback=feedback)
        read = {
            "engine": json_object(engine, "--engine"),
            "eagle_ext": json_object(eagle_ext, "--eagle-ext"),
        }
        code, text = answer(read_verify_request({**context.params, **read}), quiet=as_json)
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    except KeyboardInterrupt:
        fail("Interrupted.", as_json=as_json)
    # Print the results, then write them.
    if as_json:
        typer.echo(text)
    try:
        if out is not None:
            write_whole(out, text)
    except OSError as error:
        fail(f"--out cannot be written: {error}")
    raise typer.Exit(code)


def _task(*, gate_layouts: bool, feedback: bool) -> Callable[..., tuple[int, str]]:
    """Return what to find out about a request."""
    from vllm_eagle_ext.measure.verify import readings

    if gate_layouts and feedback:
        raise SpeculativeConfigError(
            field="--gate-layouts and --feedback", value="both", allowed="one of them at a time",
            remedy="run --gate-layouts first, and give its answer in --eagle-ext to --feedback",
        )  # fmt: skip
    question = readings.GATE_LAYOUT if gate_layouts else readings.FEEDBACK if feedback else None
    return _run_checks if question is None else partial(_compare_readings, question)


def _run_checks(request: VerifyRequest, *, quiet: bool) -> tuple[int, str]:
    from vllm_eagle_ext.measure.verify.run import run_verify
    from vllm_eagle_ext.measure.verify.table import Logs, Stages, print_verification

    with Logs() as kept:
        with Stages() as shown:
            report = run_verify(request, kept.folder, shown.stage)
        kept.passed = report.exit_code == 0
        if not quiet:
            print_verification(report, console())
    return report.exit_code, json_text(asdict(report), report.exit_code)


def _compare_readings(question: Question, request: VerifyRequest, *, quiet: bool) -> tuple[int, str]:
    from vllm_eagle_ext.measure.verify.readings import measure, require_open
    from vllm_eagle_ext.measure.verify.table import Logs, Stages, print_answer
    from vllm_eagle_ext.start.check import run_check

    checked = run_check(request.check)
    require_open(question, checked.inspection, request)
    with Logs() as kept:
        with Stages() as shown:
            answer = measure(question, request, checked, kept.folder, shown.stage)
        kept.passed = answer.best is not None
    if not quiet:
        print_answer(answer, console())
    code = 0 if answer.best else 1
    return code, json_text(answer.to_json(), code)
