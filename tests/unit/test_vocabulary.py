"""One word for one thing: what package, pages, examples, benchmarks and tests no longer call otherwise.

docs/architecture.md has the vocabulary. A word that is vLLM's or plain English somewhere is exempt
there, with the reason.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.engine import ROOT
from tests.support.readme import GUIDES

# What is written now -> what no longer is.
FORBIDDEN = {
    "aux layer, input of layer i (of a target); block boundary (of a cache)": (
        r"(?<!block\s)(?<!blocks\s)(?<!block_)(?<!blocks_)boundar(?:y|ies)"
    ),
    "one state block per draft token, per_token, state_blocks": r"(?<![a-z])slots?(?![a-z_]|=True)",
    "state block, KV-cache block": (
        r"state[_ ]pages?\b|scratch[_ ]pages?\b|pages?[_ ]per[_ ]request|null[_ ]page\b"
    ),
    "committed state": r"checkpoint state\b",
    "conv state": r"windows? of the convolution|the convolution'?s? windows?|conv_?windows",
    "acceptance length": r"\btau\b",
    "preflight": r"\bintake|_intake\b",
    "resolved-config marker": r"(?<!time)(?<![a-z])stamp(?:s|ed)?\b",
    "workaround": r"(?<![a-z])mend(?:s|ed)?(?![a-z])",
    "oracle drafts, adversarial drafts": (
        r"\brigged\b|\balways(?: |-)(?:right|wrong)\b|\b(?:right|wrong)(?: |-)drafts\b"
    ),
    "diverge at near-tied logits": (
        r"\bpart(?:s|ed|ing)?,? (?:only )?at (?:a |an? exact |near-?)?(?:tie|gap)s?\b"
    ),
    "shared with the target": r"(?<![a-z])(?:lent|lends|lendable)(?![a-z])",
    "variants": r"--ways\b",
    "preempted": r"\bput off\b",
    "expensive": r"(?<![a-z])dear(?:er)?(?![a-z])",
    "NaN": r"not[- ]a[- ]number",
    "plain PyTorch reference": r"\bunfused\b",
    "negative control": r"what (?:that|this|it) sees",
    "passed through to vLLM": r"left[_ ]to[_ ]vllm|draft(?:er)?s? of ours\b",
}
# A page or module -> the patterns that it may match, and why.
EXEMPT = {
    "docs/architecture.md": (r"left to vLLM's", "plain English"),
    "vllm_eagle_ext/cli/bench/command.py": (r'"--ways"', "a flag that is still accepted"),
    "vllm_eagle_ext/cli/parameters.py": (r'"--ways"', "a flag that is still accepted"),
    "vllm_eagle_ext/cli/plan/to_json.py": (r'"pages_per_request"', "a key that programs read"),
    "vllm_eagle_ext/measure/bench/results.py": (r'"state_pages"', "a key of older reports"),
    "vllm_eagle_ext/measure/bench/rows.py": (r'"tau"', "a key of older reports"),
    "vllm_eagle_ext/cli/check/output.py": (r'"left_to_vllm"', "a key that programs read"),
    "vllm_eagle_ext/options.py": (r'"boundary"|"slots"', "values that are still accepted"),
    "docs/hybrid.md": (
        r"\*\*Slot\*\*|blocks, not slots|at the boundary",
        "vLLM's word; a block boundary",
    ),
    "benchmarks/performance.py": (r'"hybrid_slots"', "the name of a committed report"),
    "benchmarks/performance_page.py": (r'"hybrid_slots"', "the name of a committed report"),
    "tests/e2e/test_demo.py": (r'"not-a-number"', "a value that vLLM refuses"),
    "tests/unit/measure/bench/test_report.py": (r'"state_pages"', "a key of older reports"),
    "tests/unit/measure/bench/test_request.py": (r"--ways\b", "a flag that is still accepted"),
    "tests/unit/memory/plan/test_advice.py": (r'"pages_per_request"', "a key that programs read"),
    "tests/unit/memory/plan/test_assumptions.py": (r'"pages_per_request"', "a key that programs read"),
    "tests/unit/memory/plan/test_costs.py": (r'"pages_per_request"', "a key that programs read"),
    "tests/unit/preflight/offline/test_json.py": (r'"left_to_vllm"', "a key that programs read"),
    "tests/unit/preflight/offline/test_start.py": (r'"slots"', "a value that is still accepted"),
    "tests/unit/test_options.py": (r'"boundary"|"slots"', "values that are still accepted"),
}
# All folders with code and pages; this file has the old words as patterns.
FILES = sorted(
    {
        *GUIDES,
        *(
            path
            for folder in ("vllm_eagle_ext", "docs", "examples", "benchmarks", "tests", "tools")
            for suffix in ("py", "md")
            for path in (ROOT / folder).rglob(f"*.{suffix}")
        ),
    }
    - {Path(__file__).resolve()}
)


def found_in(text: str, pattern: str) -> list[str]:
    """Lines, with their number, that hold the word; two words may stand on two lines."""
    lines = text.splitlines()
    numbers = {text.count("\n", 0, m.start()) for m in re.finditer(pattern, text, re.IGNORECASE)}
    return [f"{number + 1}: {lines[number].strip()[:120]}" for number in sorted(numbers)]


@pytest.mark.parametrize("now", FORBIDDEN)
def test_the_old_word_is_gone(now):
    hits = []
    for path in FILES:
        name = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        allowed, _ = EXEMPT.get(name, ("", ""))
        if allowed:
            text = re.sub(allowed, "", text)
        hits += [f"{name}:{hit}" for hit in found_in(text, FORBIDDEN[now])]
    assert not hits, f"{len(hits)} lines say otherwise what is called: {now}\n" + "\n".join(hits)


@pytest.mark.parametrize(
    "text",
    [
        "a block boundary", "the slot_mapping", "dataclass(slots=True)", "a timestamp", "recommend it",
        "silent", "excellent", "endearing", "the pages of docs", "amend", "block boundaries",
    ],
)  # fmt: skip
def test_other_words_are_not_taken_for_it(text):
    assert not any(found_in(text, pattern) for pattern in FORBIDDEN.values())


@pytest.mark.parametrize(
    "text",
    [
        "boundaries [2, 4]", "kept in slots", "states lie in slots.", "one state page", "its tau",
        "the intake refuses", "require_stamp(", "_mend_sampling", "texts part at ties", "put off",
        "parted at a tie", "is_left_to_vllm", "always-right drafts", "NULL_PAGE",
    ],
)  # fmt: skip
def test_old_words_are_seen(text):
    assert any(found_in(text, pattern) for pattern in FORBIDDEN.values())
