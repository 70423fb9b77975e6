"""`python -m examples.smollm2.rows OUT`: training rows from the target itself, with vLLM.

The target completes user turns from their first words at temperature 1, then answers them: seven of ten
greedily, as it is served, the others at temperature 0.7. A row is {"prompt": ids, "answer": ids,
"temperature"}. No text of anybody else is used, and none of held_out.jsonl.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from examples.dtype import choose_dtype
from examples.smollm2.fetch import FOLDER, fetch

END = "<|im_end|>"
# First words of user turns, by the kind of task; the target writes the rest of the turn.
STARTS = {
    "writing": "Write a letter to|Write a short story about|Write a poem about|Compose a|"
    "Draft an email to|Write a speech for|Describe|Write a review of|Write an invitation to|"
    "Write a blog post about|"
    "Write a product description for|Write a dialogue between|Continue this story:",
    "knowledge": "Why is|Why do|Why did|How does|How do|What causes|What is the difference between|"
    "Who was|Who invented|When did|Where does|Explain how|Explain why|What are the symptoms of|"
    "What are the benefits of|What is the capital of|Tell me about|Is it true that|Define|Compare",
    "reasoning": "Is it better to|Should|What would happen if|What is wrong with|If|Which weighs more,|"
    "Suppose|Yesterday|A farmer|Tom is|Discuss",
    "maths": "A train|A shirt costs|Calculate|Solve|Convert|What is the area of|What is the sum of|"
    "How many|How much|A rectangle has",
    "coding": "Write a Python function that|Write a Python script that|Write a SQL query that|"
    "Write a JavaScript function that|How do I|Fix this code:|Write a C program that|"
    "What does this code do?|What does the keyword|Write a bash",
    "extraction": "List the people in this text:|Extract the|Turn this into JSON:|List every|"
    "Which words|Is the following review positive or negative?|Find the|Sort these words:|Classify",
    "roleplay": "You are a|Be my|Pretend|Act as|Play the role of|Imagine",
    "summarisation": "Summarise this text:|Summarize:|Shorten this message:|What is the main idea?|"
    "Give a title to this text:|Rewrite|Translate|Correct the grammar:",
    "talk": "I am|I want to|I need|I have|My|We|Can you|Could you|Please|Help me|Give me|Recommend|"
    "Suggest|Plan|Hello|Thanks|What should I|What can I|What do you think|Name three|Make a list of",
}
# Whole turns about a word of the target's vocabulary, so that rare tokens occur.
ABOUT = (
    "Write about {}.", "What is {}?", "Explain {} to a child.", "Give me three facts about {}.",
    "How is {} used?", "Why is {} important?", "Write two sentences with the word {}.",
    "What do you know about {}?", "Write a poem about {}.", "Make a list about {}.",
)  # fmt: skip


def render(tokenizer: Any, turn: str) -> str:
    """Return a conversation of one user turn, up to where the answer begins."""
    messages = [{"role": "user", "content": turn}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def user_turns(engine: Any, count: int, rng: random.Random) -> list[str]:
    """Let the target write user turns; return those that it ended, each once."""
    from vllm import SamplingParams

    tokenizer = engine.get_tokenizer()
    words = sorted(w[1:].lower() for w in tokenizer.get_vocab() if re.fullmatch("Ġ[A-Za-z]{4,11}", w))
    starts = [start for kind in STARTS.values() for start in kind.split("|")]
    chosen = [rng.choice(starts) for _ in range(count * 7 // 8)]
    written = engine.generate(
        [render(tokenizer, start).partition(start)[0] + start for start in chosen],
        SamplingParams(
            temperature=1.0, top_p=0.95, max_tokens=96, stop=[END], seed=rng.randrange(2**31)
        ),
    )
    outputs = [(start, answer.outputs[0]) for start, answer in zip(chosen, written, strict=True)]
    turns = [
        (start + out.text).strip()
        for start, out in outputs
        if out.finish_reason == "stop" and len(out.token_ids) > 2 and "<|" not in out.text
    ]
    turns += [rng.choice(ABOUT).format(rng.choice(words)) for _ in range(count // 8)]
    return list(dict.fromkeys(turns))


def write_rows(engine: Any, turns: Sequence[str], rng: random.Random, out: Path) -> int:
    """Let the target answer, and add the rows to a file; return the number of answer tokens."""
    from vllm import SamplingParams

    tokenizer = engine.get_tokenizer()
    temperatures = [0.0 if rng.random() < 0.7 else 0.7 for _ in turns]
    answers = engine.generate(
        [render(tokenizer, turn) for turn in turns],
        [SamplingParams(temperature=t, max_tokens=224, seed=rng.randrange(2**31)) for t in temperatures],
    )
    tokens = 0
    with out.open("a") as file:
        for answer, temperature in zip(answers, temperatures, strict=True):
            ids = list(answer.outputs[0].token_ids)
            tokens += len(ids)
            row = {"prompt": list(answer.prompt_token_ids), "answer": ids, "temperature": temperature}
            file.write(json.dumps(row) + "\n")
    return tokens


def main(
    out: Annotated[Path, typer.Argument(help="The file that rows are added to.")],
    count: Annotated[int, typer.Option(min=8, help="User turns to begin.")] = 4000,
    seed: Annotated[int, typer.Option(help="Another seed writes other rows.")] = 0,
    folder: Annotated[Path, typer.Option(help="Where the target lies.")] = FOLDER,
) -> None:
    """Write training rows."""
    from vllm import LLM

    engine = LLM(
        str(fetch(folder)), dtype=choose_dtype(), enforce_eager=True,
        max_model_len=1024, max_num_seqs=48, gpu_memory_utilization=0.3,
    )  # fmt: skip
    rng = random.Random(seed)
    turns = user_turns(engine, count, rng)
    print(f"{len(turns)} rows, {write_rows(engine, turns, rng, out)} answer tokens in {out}")


if __name__ == "__main__":
    typer.run(main)
