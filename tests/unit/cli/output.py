"""What a command has printed."""

from __future__ import annotations

import json
import shlex


def serve_line(result, forced=""):
    """The words of the line to paste, behind `forced`; the values of JSON options are parsed."""
    words = shlex.split(result.stdout.splitlines()[-1].removeprefix(forced))
    assert words[:2] == ["vllm", "serve"]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    parsed = ("--speculative-config", "--additional-config")
    return words[2], {name: json.loads(v) if name in parsed else v for name, v in options.items()}


def refusal(result):
    assert result.exit_code == 2
    assert result.stdout == ""
    return result.stderr
