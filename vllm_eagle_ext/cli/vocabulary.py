# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle vocabulary`: writes the file of `draft_vocabulary`, by what texts have most."""

from __future__ import annotations

import json
import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_eagle_ext.cli import parameters
from vllm_eagle_ext.cli.terminal import console, fail, json_object, json_text
from vllm_eagle_ext.errors import EagleExtError, OptionsError

if TYPE_CHECKING:
    from vllm_eagle_ext.draft import Case
    from vllm_eagle_ext.start.check import CheckResult

_Texts = Annotated[
    Path,
    typer.Option(
        help="Count the tokens of this file: a plain text, or JSON lines in a file called *.jsonl."
    ),
]
_Entries = Annotated[
    int, typer.Option(min=64, help="Write this many token ids, fewer than the target has.")
]
_File = Annotated[Path, typer.Option(help="Write the token ids to this new JSON file.")]
_Force = Annotated[bool, typer.Option("--force", help="Replace the file that --out names.")]


def vocabulary(
    draft: parameters.Draft,
    texts: _Texts,
    target: parameters.Target = None,
    entries: _Entries = 32768,
    out: _File = Path("draft_vocabulary.json"),
    force: _Force = False,
    engine: parameters.Engine = "{}",
    revision: parameters.Revision = None,
    target_revision: parameters.TargetRevision = None,
    download_dir: parameters.DownloadDir = None,
    as_json: parameters.AsJson = False,
) -> None:
    """Choose the tokens that a draft may propose.

    It takes those that texts of yours have most often, for a draft whose output head has a row for each
    token of the target. It needs transformers for the target's tokenizer, and loads no model.

    Exits with 0 once the file is written, and with 2 if a file cannot be read or the option is not for
    this draft.
    """
    if find_spec("transformers") is None:
        fail("This command needs transformers: pip install transformers", as_json=as_json)
    from vllm_eagle_ext.measure.engine.client import refuse_reserved
    from vllm_eagle_ext.measure.outputs import write_whole
    from vllm_eagle_ext.measure.prompts import tokenizer_keywords
    from vllm_eagle_ext.measure.tokenizer import Tokenizer
    from vllm_eagle_ext.measure.vocabulary import SIZES, choose, count_tokens, coverage
    from vllm_eagle_ext.start.check import CheckRequest, run_check

    if os.path.lexists(out) and not force:
        fail(f"--out cannot be written: {out} exists, and only --force replaces it", as_json=as_json)
    # Read the draft and the target.
    where = {"download_dir": download_dir, "revision": target_revision}
    given = where | json_object(engine, "--engine")
    try:
        refuse_reserved(given)
        checked = run_check(
            CheckRequest(draft=draft, target=target, revision=revision, options={}, engine=given)
        )
        case = _of_whole_head(checked, draft, entries)
        # Count, choose and write.
        with Tokenizer(checked.target_name, **tokenizer_keywords(given)) as tokenizer:
            counted = count_tokens(texts, tokenizer)
        # Tokens that end a text, which plain texts lack, are kept whatever the texts have.
        size, eos = case.target.vocab_size, checked.text.get("eos_token_id")
        each = eos if isinstance(eos, list) else [eos]
        ends = tokenizer.chat_tokens | {id_ for id_ in each if type(id_) is int and 0 <= id_ < size}
        if entries <= len(ends):
            raise OptionsError(
                field="--entries", value=entries, allowed=f"more than the {len(ends)} tokens of chats",
                remedy="give more entries: these are kept whatever the texts have",
            )  # fmt: skip
        write_whole(out, json.dumps(choose(counted, entries, size, ends)), replaces_links=True)
    except EagleExtError as error:
        fail(str(error), as_json=as_json)
    except OSError as error:
        fail(f"--out cannot be written: {error}", as_json=as_json)
    # Print what a list of each size would keep.
    rows = [
        coverage(counted, choose(counted, count, size, ends), case)
        for count in sorted({*SIZES, entries})
        if count < size
    ]
    _print(counted, rows, case, entries, out, as_json=as_json)


def _print(
    counted: Counter[int],
    rows: list[dict[str, Any]],
    case: Case,
    entries: int,
    out: Path,
    *,
    as_json: bool,
) -> None:
    if as_json:
        keys = {"tokens": counted.total(), "entries": entries, "sizes": rows, "out": str(out)}
        typer.echo(json_text(keys, 0))
        return
    shown = console()
    shown.print(
        f"{counted.total():,} tokens, {len(counted):,} different ones of {case.target.vocab_size:,}"
    )
    per = "block" if case.spec.family.drafts_in_parallel else "drafted token"
    for row in rows:
        keeps = f"{row['entries']:>8,} entries keep {row['share']:6.1%} of them"
        shown.print(f"{keeps}, and read {row['saved'] / 1e6:,.1f} MB less per {per}")
    options = json.dumps({"eagle_ext": {"draft_vocabulary": str(out)}})
    shown.print(f"{entries:,} ids are in {out}. Serve with: --additional-config '{options}'")


def _of_whole_head(checked: CheckResult, draft: str, entries: int) -> Case:
    """Return the case of a draft that the option is for, or raise an OptionsError."""
    from vllm_eagle_ext.start.rules.draft_vocabulary import obstacles

    case, reasons = checked.inspection.case, ["a draft that `vllm-eagle check` understands"]
    if case is not None:
        reasons = [*obstacles(case)]
    if case is not None and not reasons and entries >= case.target.vocab_size:
        raise OptionsError(
            field="--entries", value=entries, allowed=f"64 to {case.target.vocab_size - 1}",
            remedy="choose fewer than the target has tokens",
        )  # fmt: skip
    if reasons or case is None:
        raise OptionsError(
            field="DRAFT", value=draft, allowed=reasons[0], remedy="serve it without the option"
        )
    return case
