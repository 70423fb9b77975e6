# SPDX-License-Identifier: Apache-2.0
"""Arguments and options that several commands share, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_eagle_ext.cli.terminal import MOST

Draft = Annotated[str, typer.Argument(help="Name the folder or hub repository of the draft.")]
Drafts = Annotated[
    list[str] | None,
    typer.Argument(help="Name the folder or hub repository of each.", show_default=False),
]
NeededTarget = Annotated[
    str, typer.Option("--target", help="Name the folder or hub repository of the target.")
]
Target = Annotated[
    str | None,
    typer.Option(
        help="Name the folder or hub repository of the target. Default: as a draft in the speculators "
        "format names it."
    ),
]
TargetRevision = Annotated[
    str | None,
    typer.Option(help="Read this branch, tag or commit of the target on the hub."),
]
K = Annotated[
    int | None,
    typer.Option(
        "-k", "--num-speculative-tokens", min=1,
        help="Draft this many tokens per step. Default: the draft's own number, or 3.",
    ),
]  # fmt: skip
Revision = Annotated[
    str | None, typer.Option(help="Read this branch, tag or commit of the draft on the hub.")
]
DownloadDir = Annotated[
    str | None, typer.Option(help="Look for hub files in this folder, as vLLM does.")
]
Length = Annotated[
    int | None,
    typer.Option(
        "--max-model-len", min=1, max=MOST,
        help="Serve texts of this many tokens. Default: the target's limit; check keeps to the draft's.",
    ),
]  # fmt: skip
Ranks = Annotated[int, typer.Option("--tp", min=1, max=MOST, help="Use this tensor parallel size.")]
Platform = Annotated[
    str,
    typer.Option(
        help="Serve on cpu, cuda, cuda:h100, cuda:h200 or cuda:b200. Default: as the installed vLLM, or "
        "cuda with --gpu-mem; without a GPU that is a described H100."
    ),
]
FirstPrompts = Annotated[
    int | None,
    typer.Option(
        "--num-prompts", min=1, help="Use only the first N prompts. Default: 20, with --quick 6."
    ),
]
AtATime = Annotated[int, typer.Option("--concurrency", min=1, help="Keep this many requests in flight.")]
TextTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", min=8,
        help="Generate this many tokens for each prompt. Default: 64, with --quick 48.",
    ),
]  # fmt: skip
Samples = Annotated[
    int | None,
    typer.Option(
        min=100,
        help="Draw this many texts at temperature 1 with each engine. Default: 1000, with --quick 300.",
    ),
]
TieGap = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Call tokens tied if their logprobs differ by no more. Default: 0.25; 0.001 for float32.",
    ),
]
Reference = Annotated[
    bool | None,
    typer.Option(
        "--reference/--no-reference",
        help="Compare acceptance with the published computation. Default: for targets up to 8 GiB.",
    ),
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="Use fewer texts and no compilation: a tiny pair takes two minutes.",
    ),
]
Feedback = Annotated[
    bool,
    typer.Option("--feedback", help="Only compare acceptance with norm_output true and false."),
]
GateLayouts = Annotated[
    bool,
    typer.Option("--gate-layouts", help="Only compare acceptance of a gated draft under both layouts."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
JsonFile = Annotated[Path | None, typer.Option("--out", help="Write the JSON to this file.")]
# Of `bench`.
Ks = Annotated[
    str | None,
    typer.Option(
        "-k", "--num-speculative-tokens",
        help="Measure these draft lengths, such as 3,5,7. Default: 3. With --schedule one number adds "
        "the usual ones below it; default: the draft's own.",
    ),
]  # fmt: skip
Concurrency = Annotated[
    str | None,
    typer.Option(
        help="Keep so many requests in flight, as 1,4,16. Default: 1; 1,2,4,8,16,32 with --schedule."
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Measure each engine this often at each load. Default: 3, with --schedule 6. From 6 on "
        "intervals are of 95 %.",
    ),
]
Together = Annotated[
    bool | None,
    typer.Option(
        "--together/--apart",
        help="Let all engines take turns, or run one at a time. Default: apart; together on a CPU with "
        "--schedule.",
    ),
]
Repeats = Annotated[int, typer.Option(min=1, help="Start this many engines of each kind.")]
Prompts = Annotated[
    str | None,
    typer.Option(help="Read prompts from this file: one per line, or JSON lines. Default: built in."),
]
NumPrompts = Annotated[
    int | None,
    typer.Option(min=1, help="Use only the first N prompts. Default: all; for texts 20 built-in ones."),
]
PromptTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Use prompts of this many random tokens; only with --dummy."),
]
MaxTokens = Annotated[int, typer.Option(min=8, help="Generate this many tokens for each prompt.")]
Temperature = Annotated[float, typer.Option(min=0, help="Sample at this temperature; 0 is greedy.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed sampling and random prompts with this number.")]
IgnoreEos = Annotated[
    bool,
    typer.Option("--ignore-eos", help="Generate all --max-tokens, so that texts have equal length."),
]
ChatTemplate = Annotated[
    bool | None,
    typer.Option(
        "--chat-template/--no-chat-template",
        help="Apply the tokenizer's chat template. Default: if it has one.",
    ),
]
Thinking = Annotated[
    bool | None,
    typer.Option("--thinking/--no-thinking", help="Turn thinking on or off in the chat template."),
]
Method = Annotated[
    str | None,
    typer.Option(help='Use this "method" of --speculative-config. Default: the draft\'s own.'),
]
Variants = Annotated[
    str,
    typer.Option(help="Measure these: none (no draft), stock (plain vLLM), ours (with this package)."),
]
Engine = Annotated[str, typer.Option(help="Pass these further arguments to LLM().")]
Speculative = Annotated[str, typer.Option(help="Add these further keys to speculative_config.")]
EagleExt = Annotated[str, typer.Option(help="Set these options of eagle_ext in additional_config.")]
Synthetic = Annotated[
    str,
    typer.Option(help="Force an acceptance length, as 3.2, or rates per position, as 0.8,0.6,0.5."),
]
Dummy = Annotated[bool, typer.Option("--dummy", help="Give the target random weights.")]
ResultDir = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Write results to this new folder. Default: bench-<time>."),
]
Schedule = Annotated[
    bool,
    typer.Option("--schedule", help="Find the K that pays at each load."),
]
Contexts = Annotated[
    str,
    typer.Option("--context", help="Make prompts at least this long in tokens, by joining texts."),
]
Steps = Annotated[int, typer.Option(min=4, help="Time this many decoding steps at each load.")]
SurfaceOnly = Annotated[
    bool,
    typer.Option(
        "--surface-only",
        help="Only time steps, and print the acceptance length that pays for drafts of this shape.",
    ),
]
Adaptive = Annotated[
    bool,
    typer.Option(
        "--adaptive",
        help="Measure vLLM's adaptive verification too, of the V2 runner on a GPU.",
    ),
]
