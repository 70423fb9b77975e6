# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle verify` as typed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import console, fail, json_object, json_text, require_engine, write_out
from vllm_eagle_ext.errors import EagleExtError, SpeculativeConfigError

if TYPE_CHECKING:
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
    from vllm_eagle_ext.measure.outputs import require_writable
    from vllm_eagle_ext.measure.verify.request import read_verify_request

    try:
        if out is not None:
            require_writable(out)
        if gate_layouts and feedback:
            raise SpeculativeConfigError(
                field="--gate-layouts and --feedback", value="both", allowed="one of them at a time",
                remedy="run --gate-layouts first, and give its answer in --eagle-ext to --feedback",
            )  # fmt: skip
        option = "gate_layout" if gate_layouts else "norm_output" if feedback else None
        read = {
            "engine": json_object(engine, "--engine"),
            "eagle_ext": json_object(eagle_ext, "--eagle-ext"),
        }
        code, text = _run(read_verify_request({**context.params, **read}), option, quiet=as_json)
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    except KeyboardInterrupt:
        fail("Interrupted.", as_json=as_json)
    # Print the results, then write them.
    if as_json:
        typer.echo(text)
    write_out(out, text)
    raise typer.Exit(code)


def _run(request: VerifyRequest, option: str | None, *, quiet: bool) -> tuple[int, str]:
    """Run the checks, or only compare the readings of an option; return the exit status and JSON."""
    from vllm_eagle_ext.measure.verify import readings, run, table
    from vllm_eagle_ext.start.check import run_check

    with table.Logs() as kept:
        if option is None:
            with table.Stages() as shown:
                report = run.run_verify(request, kept.folder, shown.stage)
            code, keys = report.exit_code, asdict(report)
        else:
            question = readings.GATE_LAYOUT if option == "gate_layout" else readings.FEEDBACK
            checked = run_check(request.check)
            readings.require_open(question, checked.inspection, request)
            with table.Stages() as shown:
                answer = readings.measure(question, request, checked, kept.folder, shown.stage)
            code, keys = int(answer.best is None), answer.to_json()
        kept.passed = code == 0
        if not quiet and option is None:
            table.print_verification(report, console())
        elif not quiet:
            table.print_answer(answer, console())
    return code, json_text(keys, code)
