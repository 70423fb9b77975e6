"""What a command has printed."""

from __future__ import annotations

import json
import shlex


def serve_line(result, forced=""):
    """The words of the line to paste, behind `forced`; the values of JSON options are parsed."""
    words = shlex.split(result.stdout.splitlines()[-1].removeprefix(forced))
    assert words[:2] == ["vllm", "serve"]
    parsed = ("--speculative-config", "--additional-config")
    options, words_left = {}, words[3:]
    while words_left:
        name = words_left.pop(0)
        is_flag = not words_left or words_left[0].startswith("--")
        value = True if is_flag else words_left.pop(0)
        options[name] = json.loads(value) if name in parsed else value
    return words[2], options


def refusal(result):
    assert result.exit_code == 2
    assert result.stdout == ""
    return result.stderr
