"""docs/published_drafts.md: every draft named in the fixtures, and what `vllm-eagle check` says of it.

python -m tests.published_drafts           prints the page
python -m tests.published_drafts --write   writes it
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.engine import ROOT
from tests.support.published import Published, materialise, published, write_target
from vllm_eagle_ext.draft import DraftSpec
from vllm_eagle_ext.draft.rules.request import wanted_runner
from vllm_eagle_ext.start.check import CheckRequest, CheckResult, run_check

PAGE = ROOT / "docs/published_drafts.md"
# A repository of the hub; a publisher whose repository is not known by name. Others are templates.
_LISTED = re.compile(r"[\w.-]+/[\w.-]+(, folder \w+)?|[\w-]+, EAGLE-3 head for .+")
_SURENESS = {"I": "inferred", "R": "reports", "S": "source"}  # the least sure first
_MARKS = {"inferred": "ⁱ", "reports": "ʳ", "source": "ˢ"}
# Titles that say too little next to the others.
_FAMILIES = {
    "native": "native EAGLE-3",
    "post-norm": "post-norm EAGLE-3",
    "gated": "gated EAGLE-3",
    "mla": "EAGLE-3 with latent attention (MLA)",
    "p-eagle": "P-EAGLE",
    "dflash": "DFlash",
}
_LEFT, _REFUSED = "passed through", "refused"

HEAD = """# Published drafts

The table shows verdicts of `vllm-eagle check`. **We have seen no weight file**: each draft is a
[fixture](../tests/fixtures/checkpoints) with what is known.
Check yours: `vllm-eagle check REPOSITORY --target TARGET -k K`.

- Known from sourceˢ, reportsʳ (a card, an issue, a log) or inferredⁱ.
- *Runner*: vLLM's runners that can draft.
- *Served* with rules: warnings of [drafts.md](drafts.md).

|drafts|target|family|runner|verdict|
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Check:
    draft: Published
    result: CheckResult

    @property
    def spec(self) -> DraftSpec | None:
        return self.result.inspection.spec

    @property
    def kind(self) -> str:
        if self.result.inspection.is_passed_through:
            return _LEFT
        return _title(self.spec) if self.spec and not self.result.exit_code else _REFUSED

    @property
    def verdict(self) -> str:
        return self.kind if self.kind in (_LEFT, _REFUSED) else "served"

    @property
    def cells(self) -> tuple[str, ...]:
        """What a row says of it, its name apart."""
        inspection, spec = self.result.inspection, self.spec
        runner = wanted_runner(spec) if spec else None
        said = inspection.errors if self.result.exit_code else inspection.warnings
        rules = ", ".join(dict.fromkeys(f"`{finding.rule}`" for finding in said))
        return (
            target_of(self.draft),
            _title(spec) if spec else "-",
            runner[0].upper() if runner else "both" if spec else "-",
            f"{self.verdict}: {rules}" if rules else self.verdict,
        )


def _title(spec: DraftSpec) -> str:
    return _FAMILIES.get(spec.family.name, spec.title)


def target_of(draft: Published) -> str:
    return draft.target["architectures"][0]


def known(draft: Published) -> str:
    """How surely the least sure of its parts is known."""
    marks = set(draft.known.values())
    return next((words for letter, words in _SURENESS.items() if letter in marks), "")


def find(drafts: Sequence[Published]) -> list[Check]:
    """The check of each, of files as published."""
    checks = []
    with tempfile.TemporaryDirectory() as folder:
        for draft in drafts:
            there = Path(folder, draft.slug)
            there.mkdir()
            request = CheckRequest(
                draft=str(materialise(draft, there)), method=draft.method, k=draft.k,
                target=str(write_target(draft, Path(folder, f"{draft.slug}-target"))),
                engine={"max_model_len": 4096}, options={}, platform="cuda",
            )  # fmt: skip
            checks.append(Check(draft, run_check(request)))
    return checks


def page(checks: Sequence[Check]) -> str:
    return HEAD + "".join(f"|{'|'.join(row)}|\n" for row in rows(checks))


def rows(checks: Sequence[Check]) -> Iterator[tuple[str, ...]]:
    """Drafts whose cells are equal share a row, which stands where the first of them does."""
    listed = [check for check in checks if _LISTED.fullmatch(check.draft.checkpoint)]
    names: dict[tuple[str, ...], list[str]] = {}
    for check in sorted(listed, key=lambda check: check.draft.checkpoint.lower()):
        names.setdefault(check.cells, []).append(f"{_linked(check.draft)}{_MARKS[known(check.draft)]}")
    return ((", ".join(those), *cells) for cells, those in names.items())


def _name(draft: Published) -> str:
    """A folder of a repository as `vllm-eagle check` takes it: OWNER/NAME/FOLDER."""
    return draft.checkpoint.replace(", folder ", "/")


def _linked(draft: Published) -> str:
    """Link a name to the card of its repository, or to the publisher of one whose name is not known."""
    card = draft.checkpoint.split(",")[0]
    return f"[`{_name(draft)}`](https://huggingface.co/{card})"


def main() -> None:
    checks = find(published())
    text = page(checks)
    print(text)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
