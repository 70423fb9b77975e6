# SPDX-License-Identifier: Apache-2.0
"""Options of the commands that run engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Draft = Annotated[str, typer.Argument(help="Folder or hub repository of the draft.")]
NeededTarget = Annotated[str, typer.Option("--target", help="Folder or hub repository of the target.")]
K = Annotated[
    int | None,
    typer.Option("-k", "--num-speculative-tokens", min=1, help="Default: the draft's own, or 3."),
]
Revision = Annotated[str | None, typer.Option(help="The draft's revision on the hub.")]
FirstPrompts = Annotated[
    int | None,
    typer.Option("--num-prompts", min=1, help="The first of them. Default 20, with --quick 6."),
]
AtATime = Annotated[int, typer.Option("--concurrency", min=1, help="Texts at a time.")]
TextTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", min=8, help="New tokens of each prompt. Default 64, with --quick 48."),
]
Samples = Annotated[
    int | None,
    typer.Option(min=100, help="Drawn at temperature 1. Default 1000, with --quick 300."),
]
TieGap = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Of logprobs at a near-tie; default 0.25, two steps of bf16; with dtype float32 0.001.",
    ),
]
Reference = Annotated[
    bool | None,
    typer.Option("--reference/--no-reference", help="Default: for targets of at most 8 GiB."),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Some two minutes for a tiny pair: fewer texts, no compilation.")
]
Feedback = Annotated[
    bool, typer.Option("--feedback", help="Only measure a draft with norm_output true and false.")
]
GateLayouts = Annotated[
    bool, typer.Option("--gate-layouts", help="Only measure a gated draft under both layouts.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
JsonFile = Annotated[Path | None, typer.Option("--out", help="A file for the JSON.")]
Drafts = Annotated[
    list[str] | None,
    typer.Option("--draft", help="Folder or hub repository of a draft; may be given again."),
]
Ks = Annotated[str, typer.Option("-k", "--num-speculative-tokens", help="Such as 3,5,7.")]
Concurrency = Annotated[str, typer.Option(help="Requests at a time, such as 1,4,16.")]
Repeats = Annotated[int, typer.Option(min=1, help="Engines of each kind.")]
Rounds = Annotated[int, typer.Option(min=1, help="Measurements of an engine at each concurrency.")]
Together = Annotated[
    bool,
    typer.Option(
        "--together", help="Keep the engines of a repeat beside each other, to take turns by rounds."
    ),
]
Prompts = Annotated[str | None, typer.Option(help="A file: a prompt a line, or JSON lines.")]
NumPrompts = Annotated[
    int | None, typer.Option(min=1, help="Of the file; default all, 20 of those built in.")
]
PromptTokens = Annotated[int | None, typer.Option(min=1, help="With --dummy: random ids.")]
MaxTokens = Annotated[int, typer.Option(min=8, help="New tokens of each prompt.")]
Temperature = Annotated[float, typer.Option(min=0)]
Seed = Annotated[int, typer.Option(min=0)]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Texts of equal length.")]
ChatTemplate = Annotated[
    bool | None,
    typer.Option("--chat-template/--no-chat-template", help="Default: the tokenizer's, if any."),
]
Thinking = Annotated[
    bool | None, typer.Option("--thinking/--no-thinking", help="Switch of the chat template.")
]
Method = Annotated[str | None, typer.Option(help="As in --speculative-config.")]
Variants = Annotated[
    str, typer.Option(help="Of none (no draft), stock (vLLM alone), ours (with this package).")
]
Engine = Annotated[str, typer.Option(help="Further arguments of LLM() as JSON.")]
Speculative = Annotated[str, typer.Option(help="Further keys of speculative_config.")]
EagleExt = Annotated[str, typer.Option(help="Options as in additional_config.")]
Synthetic = Annotated[
    str, typer.Option(help="An acceptance length, or rates per position: 3.2 or 0.8,0.6,0.5.")
]
Dummy = Annotated[bool, typer.Option("--dummy", help="Dummy weights of the target.")]
Out = Annotated[Path | None, typer.Option(help="A new folder. Default ./bench-<time>.")]
Lengths = Annotated[
    str | None,
    typer.Option(help="Lengths to measure, such as 1,2,4; default every K up to 4, then fewer."),
]
Levels = Annotated[
    str | None,
    typer.Option("--concurrency", help="Requests at a time. Default 1,2,4,8,16,32."),
]
Contexts = Annotated[
    str, typer.Option("--context", help="Tokens that prompts have at least: texts are put together.")
]
TuneRounds = Annotated[int, typer.Option(min=1, help="Measurements at each load; from 6 on: 95 %.")]
Steps = Annotated[int, typer.Option(min=4, help="Decoding steps timed at each load.")]
SurfaceOnly = Annotated[
    bool,
    typer.Option(
        "--surface-only",
        help="Only the acceptance length that pays, from step times: any draft of the shape will do.",
    ),
]
Adaptive = Annotated[
    bool, typer.Option("--adaptive", help="Measure vLLM's adaptive verification as well: V2 on a GPU.")
]
Beside = Annotated[
    bool | None,
    typer.Option("--together/--apart", help="Engines beside each other. Default: on a CPU."),
]
AllPrompts = Annotated[int | None, typer.Option(min=1, help="The first of them. Default: all.")]
TuneOut = Annotated[Path | None, typer.Option(help="A new folder. Default ./tune-<time>.")]
