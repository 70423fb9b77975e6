"""What `vllm-eagle check` and `plan` print and a start logs, as docs/usage.md shows it.

    python -m tools.shown_output      runs the page's commands and writes their output below them

The target of `plan` has its published sizes and no weights, in place of the hub's files.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from tests.unit.memory.configs import GIB_27B
from tests.unit.plan.inputs import write_shard
from vllm_eagle_ext.log import NAME

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/usage.md"
DRAFT, DRAFTED = "examples/tiny/postnorm", "examples/tiny/target"
TARGET, CONFIG = "Qwen/Qwen3.6-27B", ROOT / "tests/fixtures/hybrid/qwen3_6_27b.json"
_SHOWN = re.compile(
    r"(```bash\n(vllm-eagle (?:check|plan) [^\n]*)\n```\n\n```text\n).*?(?=```)", re.DOTALL
)
_LOGGED = re.compile(rf"(?<=```text\n){NAME}: Draft '.*?(?=```)", re.DOTALL)
# What `check` says on a CPU without AVX-512 only.
_FALLBACK = re.compile(r"^warning dtype_has_a_kernel: .*\n(?:  .*\n)*", re.MULTILINE)
_WIDTH = 115


def output_of(command: str) -> str:
    """What a command of the page prints, with the target's folder where it looks for it."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder, TARGET)
        there.mkdir(parents=True)
        (there / "config.json").write_text(json.dumps(json.loads(CONFIG.read_text())["config"]))
        write_shard(there / "model.safetensors", {"weights": int(GIB_27B * 2**30)})
        Path(folder, "examples").symlink_to(ROOT / "examples")
        words = shlex.split(command)
        words[0] = str(Path(sys.executable).parent / words[0])
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
        result = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
    return _FALLBACK.sub("", result.stdout)


def logged_line() -> str:
    """What a start with the page's draft says of it."""
    from vllm_eagle_ext.start.check import CheckRequest, run_check
    from vllm_eagle_ext.start.messages import describe

    request = CheckRequest(draft=DRAFT, target=DRAFTED, k=4, options={}, platform="cpu")
    with contextlib.chdir(ROOT):  # the page names its draft from there
        checked = run_check(request)
    return f"{NAME}: {describe(checked.inspection.spec, checked.target.num_layers)}"


def _wrapped(text: str) -> str:
    """Sentences at the page's width; tables, and commands to copy, as they are."""
    lines = []
    for line in text.splitlines():
        is_prose = len(line) > _WIDTH and not line.startswith("vllm ")
        lines += textwrap.wrap(line, _WIDTH) if is_prose else [line.rstrip()]
    return "\n".join(lines) + "\n"


def main() -> None:
    def filled(match: re.Match[str]) -> str:
        return match[1] + _wrapped(output_of(match[2]))

    page, count = _SHOWN.subn(filled, PAGE.read_text(encoding="utf-8"))
    page, logged = _LOGGED.subn(lambda _: _wrapped(logged_line()), page)
    PAGE.write_text(page, encoding="utf-8")
    print(f"{count + logged} blocks of {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
