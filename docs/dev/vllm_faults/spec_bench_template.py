"""The reader of spec_bench applies the chat template regardless.

Kind: explains an observation.
Met by: `vllm bench` with `--skip-chat-template`.
Symptom: Prompts of spec_bench carry the template twice when a client applies it, or once where none was
  wanted.
Cause: `benchmarks/datasets/datasets.py`, `get_samples` does not hand `skip_chat_template` to
  `SpecBench.sample`, as it does for other sets.
Releases: 0.32 and 0.33 (run).
Workaround: None, since nothing of this package reads the set.
Remedy: a tokenizer whose template leaves a prompt as it is.
Can go when: `get_samples` hands it on.
"""

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
