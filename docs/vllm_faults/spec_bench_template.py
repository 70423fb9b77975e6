"""The reader of spec_bench applies the chat template also where it is told to skip it."""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

from vllm.benchmarks.datasets import get_samples

file = Path(tempfile.mkdtemp()) / "question.jsonl"
file.write_text(json.dumps({"category": "a", "turns": ["plain"]}))
tokenizer = type(
    "Tokenizer",
    (),
    {
        "__call__": lambda self, text, **_: SimpleNamespace(input_ids=[0]),
        "apply_chat_template": lambda self, messages, **_: f"<user>{messages[0]['content']}",
    },
)()
asked = {
    "dataset_name": "spec_bench", "dataset_path": str(file), "spec_bench_category": None,
    "spec_bench_output_len": 1, "disable_shuffle": True, "num_prompts": 1, "request_id_prefix": "",
    "no_oversample": True, "enable_multimodal_chat": False, "skip_chat_template": True, "seed": 0,
    "backend": "openai",
}  # fmt: skip
prompt = get_samples(SimpleNamespace(**asked), tokenizer)[0].prompt
if prompt == "plain":
    print("fault gone: the template was skipped")
    raise SystemExit(1)
print(f"fault present: the prompt is {prompt!r}, although the template was to be skipped")
