"""What `check` and a start say of some 1,000 cases and 5,800 mutants, to compare later code with.

python -m tests.golden --write     writes the file of the installed release of vLLM
python -m tests.golden --check     compares with it: names the cases that differ, exits with 1
    SECTION ..                     only these: mutation, rule, published, option, start

A case is `## name`, an exit status, and a line for each finding: rule, field, value, allowed, remedy.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.golden.cases import Cases, run, tasks_of

HERE = Path(__file__).parent


def dumped(sections: list[str]) -> Cases:
    dump: Cases = {}
    # A fresh process for each: a start's has imported vLLM, and its plugins.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        waiting = {name: pool.submit(run, name, task) for name, task in tasks_of(sections).items()}
        for name, future in waiting.items():
            cases, seconds = future.result()
            dump |= cases
            print(f"{name}: {len(cases)} cases in {seconds:.0f} s", file=sys.stderr)
    return dump


def text_of(cases: Cases) -> str:
    return "".join(f"## {name}\n  {cases[name]}\n" for name in sorted(cases))


def cases_of(text: str) -> Cases:
    blocks = (block.partition("\n  ") for block in text.removeprefix("## ").split("\n## "))
    return {name: said.rstrip("\n") for name, _, said in blocks if name}


def differences(before: Cases, now: Cases) -> Iterator[str]:
    """A diff for each case that differs, then their names."""
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    for name in names:
        old, new = (said.get(name, "(no such case)").split("\n  ") for said in (before, now))
        yield f"## {name}"
        yield from list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]
    yield from ("", f"{len(names)} of {len(now)} cases differ", *names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION")
    does = parser.add_mutually_exclusive_group(required=True)
    does.add_argument("--write", action="store_true")
    does.add_argument("--check", action="store_true")
    asked = parser.parse_args()

    from vllm_eagle_ext.version import installed_vllm

    file = HERE / f"{'.'.join(str(installed_vllm()).split('.')[:2])}.txt"
    kept = cases_of(file.read_text(encoding="utf-8")) if file.exists() else {}
    parts = tuple(f"{section}:" for section in asked.sections)
    now = dumped(asked.sections)
    if asked.write:
        others = {name: said for name, said in kept.items() if parts and not name.startswith(parts)}
        file.write_text(text_of(others | now), encoding="utf-8")
        return
    if not kept:
        raise SystemExit(f"{file.name} is missing: write it with the code to compare with")
    before = {name: said for name, said in kept.items() if not parts or name.startswith(parts)}
    print("\n".join(differences(before, now)))
    sys.exit(before != now)


if __name__ == "__main__":
    main()
