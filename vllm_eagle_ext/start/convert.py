# SPDX-License-Identifier: Apache-2.0
"""A copy of a draft that vLLM without this package serves as it was trained.

Only config.json changes, and names of tensors, which stand in the headers of their files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from vllm_eagle_ext.draft import Case, inspect_draft
from vllm_eagle_ext.draft.headers import header_length, parse_json
from vllm_eagle_ext.draft.stock_gaps import stock_gaps, unread_names
from vllm_eagle_ext.draft.tensors import canonical_name
from vllm_eagle_ext.errors import SpeculativeConfigError, UnsupportedDraftError
from vllm_eagle_ext.start.check import CheckResult, usual_k
from vllm_eagle_ext.start.serve import serve_command

# Warnings of what only acceptance under an option decides.
_GUESSES = ("aux_layer_ids_may_be_inputs", "aux_order_is_unambiguous", "norm_output_is_unambiguous")
_SERVE = "serve it with this package, because without it:"


@dataclass(frozen=True, slots=True)
class Conversion:
    """Holds a config.json for vLLM without this package."""

    case: Case
    config: Mapping[str, Any]
    in_speculators_format: bool  # of a draft that is not published in it

    @property
    def renames(self) -> bool:
        return self.in_speculators_format or bool(unread_names(self.case))


def conversion_of(result: CheckResult, *, in_speculators_format: bool = False) -> Conversion | None:
    """Work out a copy of a checked draft.

    Returns:
        None where vLLM serves the draft as it is published.

    Raises:
        UnsupportedDraftError: vLLM cannot serve the draft rightly, or nothing shows that it does.
        SpeculativeConfigError: its files are not at hand.
    """
    case = result.inspection.case
    if case is None or result.inspection.errors:
        raise UnsupportedDraftError(
            field="DRAFT", value=result.request.draft, allowed="one that `vllm-eagle check` approves",
            remedy="run it, and correct what it names",
        )  # fmt: skip
    # What no copy could say, or was not tried.
    _require_files(result, case)
    if reasons := list(_untried(result, case)):
        raise _no_copy(result, reasons)
    gaps = stock_gaps(case)
    other = in_speculators_format and case.spec.format == "published"
    if not gaps and not other:
        return None
    if case.spec.family.stock_config is None:
        raise _no_copy(result, gaps or [f"this format was not tried with {case.spec.title} drafts"])
    # The copy's config, and what vLLM would still get wrong with it.
    name = (
        os.path.abspath(result.target_name) if os.path.isdir(result.target_name) else result.target_name
    )
    verifier = {"name_or_path": name, "architectures": [result.architecture]}
    make, k = resolve_name(case.spec.family.stock_config), result.request.k or usual_k(case.spec)
    conversion = Conversion(case, make(case, verifier if other else None, k), other)
    if left := _left(conversion):
        if other or case.spec.format != "published":
            raise _no_copy(result, left)
        conversion_of(result, in_speculators_format=True)  # unless that has no copy either:
        raise _no_copy(result, left, "add --format speculators, which can say what this one cannot:")
    return conversion


def _require_files(result: CheckResult, case: Case) -> None:
    """Raise a SpeculativeConfigError for files that cannot be copied from here."""
    remedy = None
    if case.files.folder is None:
        remedy = "fetch its files with `hf download`, and name their folder"
    elif not case.has_tensors:
        remedy = "save its weights as safetensors"
    if remedy:
        raise SpeculativeConfigError(
            field="DRAFT", value=result.request.draft, allowed="a folder with safetensors files",
            remedy=remedy,
        )  # fmt: skip


def _untried(result: CheckResult, case: Case) -> Iterator[str]:
    """Yield why nothing shows that vLLM reads the draft as it was trained."""
    for finding in result.inspection.findings:
        if finding.rule in _GUESSES:
            yield f"{finding.problem.field}: only acceptance under an option tells what is meant"
    if case.spec.quantisation is not None:
        yield "quantised drafts were not tried"
    if case.target.padding:
        yield "the target's vocabulary has rows that the draft does not know"


def _left(conversion: Conversion) -> list[str]:
    """Return what vLLM would still get wrong of the copy."""
    files = replace(conversion.case.files, config=conversion.config)
    if conversion.renames:
        named = {name: replace(header, published=name) for name, header in files.tensors.items()}
        files = replace(files, tensors=named)
    read = inspect_draft(files, conversion.case.target, conversion.case.request)
    if read.case is None or read.errors:  # keys of the draft contradict what would be added
        return stock_gaps(conversion.case) or [str(finding.problem) for finding in read.causes]
    return stock_gaps(read.case)


def _no_copy(result: CheckResult, reasons: list[str], remedy: str = _SERVE) -> UnsupportedDraftError:
    return UnsupportedDraftError(
        field="DRAFT", value=result.request.draft,
        allowed="one that vLLM serves rightly by keys of config.json and names of tensors",
        remedy=remedy, more=reasons,
    )  # fmt: skip


def start_command(result: CheckResult, conversion: Conversion, out: Path) -> str:
    """Compose the line that serves a copy without this package."""
    if conversion.in_speculators_format:
        return serve_command(result, in_one=str(out))
    return serve_command(replace(result, request=replace(result.request, draft=str(out))))


def require_new_folder(out: Path) -> None:
    """Raise a SpeculativeConfigError for a file, or for a folder with content."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SpeculativeConfigError(
            field="OUT", value=str(out), allowed="a new or an empty folder",
            remedy="name another folder: nothing is overwritten",
        )  # fmt: skip


def write(conversion: Conversion, out: Path) -> dict[str, str]:
    """Write the copy, config.json last; return how each file of weights came into it."""
    folder, tensors = conversion.case.files.folder, conversion.case.files.tensors
    assert folder is not None
    shards = sorted({header.file for header in tensors.values()})
    bring = _copy_renamed if conversion.renames else _link
    with ExitStack() as begun:  # what cannot be finished goes again
        if out.is_dir():
            begun.callback(out.mkdir)  # the last to run
        out.mkdir(parents=True, exist_ok=True)
        begun.callback(shutil.rmtree, out, ignore_errors=True)
        how = {name: bring(folder / name, out / name) for name in shards}
        if len(shards) > 1:
            total = {"total_size": sum(header.size for header in tensors.values())}
            map_ = {
                name if conversion.renames else header.published: header.file
                for name, header in tensors.items()
            }
            index = json.dumps({"metadata": total, "weight_map": map_}, indent=2) + "\n"
            front = "consolidated" if shards[0].startswith("consolidated") else "model"
            (out / f"{front}.safetensors.index.json").write_text(index)
        (out / "config.json").write_text(json.dumps(conversion.config, indent=2) + "\n")
        begun.pop_all()
    return how


def _link(source: Path, copy: Path) -> str:
    """Make a hard link, which takes no room and outlives the draft's folder; else a copy."""
    try:
        os.link(source.resolve(), copy)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, copy)
        return "copied"
    return "a hard link"


def _copy_renamed(source: Path, copy: Path) -> str:
    """Copy a safetensors file with the canonical names in its header; offsets count from its end."""
    with source.open("rb") as old, copy.open("wb") as new:
        length = header_length(old.read(8), source.stat().st_size)
        header = parse_json(old.read(length), unique_keys=True)  # `__metadata__` keeps its name
        raw = json.dumps({canonical_name(name): entry for name, entry in header.items()}).encode()
        raw += b" " * (-len(raw) % 8)  # so that the data begins where safetensors aligns it
        new.write(len(raw).to_bytes(8, "little") + raw)
        shutil.copyfileobj(old, new)
    return "copied with other names of tensors"
