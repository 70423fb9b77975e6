# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle check`, `rule` and `convert` as typed. No engine starts."""

from __future__ import annotations

from difflib import get_close_matches
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import console, fail, json_object, json_text
from vllm_eagle_ext.errors import EagleExtError, UnsupportedDraftError
from vllm_eagle_ext.printable import shown

_Quick = Annotated[
    bool, typer.Option("--quick", help="Check the files only: vLLM is not asked, which takes 10 s.")
]
_Further = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- VLLM_OPTIONS", show_default=False,
        help="After --: further options of vllm serve, such as --kv-cache-dtype fp8.",
    ),
]  # fmt: skip
_Weights = Annotated[bool, typer.Option("--weights", help="Read the values of every tensor too.")]
_All = Annotated[bool, typer.Option("--all", help="Show also the errors that follow from others.")]

_Copy = Annotated[Path, typer.Argument(help="Write the copy to this new folder.")]
_Format = Annotated[
    Literal["own", "speculators"],
    typer.Option("--format", help="Keep the draft's own format, or name target and K in another."),
]


def check(
    draft: Annotated[
        str, typer.Argument(help="Name the folder or hub repository of the draft, or OWNER/NAME/FOLDER.")
    ],
    further: _Further = None,
    target: parameters.Target = None,
    k: parameters.K = None,
    method: parameters.Method = None,
    max_model_len: parameters.Length = None,
    revision: parameters.Revision = None,
    target_revision: parameters.TargetRevision = None,
    download_dir: parameters.DownloadDir = None,
    platform: parameters.Platform = "auto",
    tp: parameters.Ranks = 1,
    speculative: parameters.Speculative = "{}",
    eagle_ext: parameters.EagleExt = "{}",
    weights: _Weights = False,
    quick: _Quick = False,
    everything: _All = False,
    as_json: parameters.AsJson = False,
) -> None:
    """Tell whether a draft will be served, and with which command.

    It reads the files of the draft and the target, and lets the installed vLLM make its config for the
    command. No model is loaded.

    Exits with 0 if the draft will be served, with 1 if it would be refused, and with 2 if that cannot
    be told. It exits with 3 if the files allow the draft, and the engine was not asked.
    """
    from vllm_eagle_ext.cli.check_output import print_files, print_verdict, to_json
    from vllm_eagle_ext.start.check import CheckRequest, run_check
    from vllm_eagle_ext.start.dry import Answer, Final, ask_engine

    # What was typed becomes a request.
    ours = json_object(eagle_ext, "--eagle-ext")
    more = json_object(speculative, "--speculative")
    words = further or []
    engine: dict[str, Any] = {
        "max_model_len": max_model_len, "download_dir": download_dir, "tensor_parallel_size": tp,
        "revision": target_revision,
    }  # fmt: skip
    request = CheckRequest(
        draft=draft, target=target, k=k, method=method, revision=revision, options=ours,
        platform=platform, subfolders=True, speculative=more, engine=engine,
    )  # fmt: skip
    waiting = console(stderr=True).status  # seen on a terminal only
    try:
        # Read the files, and apply the rules.
        with waiting("reading weights" if weights else "reading files"):
            result = run_check(request, all_values=weights)
        if not as_json:
            print_files(result, console(), everything=everything)
        # Ask the engine, whose word is the last.
        answer = Answer(verdict="not asked", why="--quick")
        if not quick:
            with waiting("asking vLLM, which takes some 10 s"):
                answer = ask_engine(result, words)
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    # Print the verdict, and exit with its status.
    final = Final(result, answer, words)
    if as_json:
        typer.echo(to_json(final))
    else:
        print_verdict(final, console(), everything=everything)
    raise typer.Exit(final.exit_code)


def rule(name: Annotated[str, typer.Argument(help="Name a rule as `check` prints it.")]) -> None:
    """Explain a rule that `check` names, and how grave it is.

    Exits with 0, and with 2 if no rule has the name.
    """
    from vllm_eagle_ext.draft.registry import families
    from vllm_eagle_ext.draft.rules import rules_for
    from vllm_eagle_ext.start.rules import printed_rules

    rules = printed_rules()
    if name not in rules:
        close = get_close_matches(name, rules)
        fail(f"No rule is called {shown(name)}." + (f" Close: {', '.join(close)}." if close else ""))
    named, out = rules[name], console()
    error = named.error.__name__ if named.error else "vLLM's own error"
    raised = f", a start raises {error}" if named.severity == "error" else ""
    relaxed = "; `strict: false` makes it a warning" if raised and named.can_run else ""
    out.print(f"{name}: {named.severity}{raised}{relaxed}")
    if named.of is not None:
        titles = [family.title for family in families().values() if named in rules_for(family)]
        out.print(f"For {', '.join(titles)}.")
    for line in ("", *(getdoc(named.check) or "").split("\n")):
        out.print(line)


def convert(
    draft: parameters.Draft,
    out: _Copy,
    target: parameters.Target = None,
    k: parameters.K = None,
    format_: _Format = "own",
    revision: parameters.Revision = None,
    target_revision: parameters.TargetRevision = None,
    as_json: parameters.AsJson = False,
) -> None:
    """Make a copy of a draft that vLLM serves without this package.

    It adds keys to config.json. The weights are hard links to the draft's files where the file system
    has them: do not edit those in place. A draft that vLLM serves as published is not copied.

    Exits with 0 if vLLM serves the draft or its copy, with 1 if it cannot, and with 2 if a file cannot
    be read or written.
    """
    from vllm_eagle_ext.start.check import CheckRequest, run_check
    from vllm_eagle_ext.start.convert import conversion_of, require_new_folder, start_command, write

    # Read the draft, and find out what its copy must state.
    said: dict[str, Any] = {"out": str(out), "files": {}, "command": None, "reason": None}
    code = 0
    try:
        require_new_folder(out)
        engine = {"revision": target_revision}
        request = CheckRequest(
            draft=draft, target=target, k=k, revision=revision, options={}, engine=engine
        )
        result = run_check(request)
        try:
            conversion = conversion_of(result, in_speculators_format=format_ == "speculators")
        except UnsupportedDraftError as refusal:
            conversion, code, said["reason"] = None, 1, str(refusal)
        if conversion is not None:
            said["files"] = write(conversion, out)
            said["command"] = start_command(result, conversion, out)
        elif not code:
            said["reason"] = "vLLM reads this draft as it is meant by itself: nothing was written."
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    except OSError as error:
        fail(f"OUT cannot be written: {error}", as_json=as_json)
    # Say what was done, and how to start it.
    lines = [f"{name}: {way}" for name, way in said["files"].items()]
    lines += (said["reason"] or f"Start it without this package:\n{said['command']}").splitlines()
    for line in [json_text(said, code)] if as_json else lines:
        (typer.echo if as_json else console().print)(line)
    raise typer.Exit(code)
