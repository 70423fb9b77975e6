"""Keys of a draft's config in wrong types: `check`, its dry start and a start say the same of each."""

from __future__ import annotations

import copy
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.fuzz.changes import Path_, at, places
from tests.fuzz.run import SECONDS
from tests.support import warm_child
from tests.support.checkpoints import write_target
from tests.support.drafts import Draft, valid_draft, write
from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.start import dry
from vllm_eagle_ext.start.check import CheckRequest, run_check
from vllm_eagle_ext.start.serve import serve_environment

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 0.5, "", "x", [], [3], ["x"], [None], {}, {"0": "x"}, {"x": 5},
)  # fmt: skip
CLASSES = {
    "native": transformers.LlamaConfig,
    "mla": transformers.DeepseekV3Config,
    "quantised": transformers.LlamaConfig,
    "qwen3": transformers.Qwen3Config,
    "speculators": transformers.LlamaConfig,
}
# What the base class takes beyond its fields, and what vLLM's config builder looks for.
FURTHER = (
    "attn_implementation", "auto_map", "compression_config", "dtype", "experts_implementation",
    "layer_types", "max_seq_len", "max_sequence_length", "model_max_length", "moe_num_experts",
    "n_positions", "n_predict", "n_routed_experts", "name_or_path", "num_experts", "num_experts_per_tok",
    "num_labels", "num_local_experts", "output_attentions", "partial_rotary_factor",
    "per_layer_config", "problem_type", "quantization_config", "rope_parameters", "rope_scaling",
    "rope_theta", "seq_length", "sliding_window", "text_config", "torch_dtype", "vision_config",
)  # fmt: skip
ROPES: tuple[dict[str, Any], ...] = (
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0, "alpha": 2.0},
    {"rope_type": "yarn", "factor": 2.0, "beta_fast": 32.0, "mscale": 1.0, "attention_factor": 1.0},
    {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [1.0] * 16},
    {"type": "mrope", "mrope_section": [4, 4, 8]},
    {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0, "full_attention": {}},
)


def changes(config: dict[str, Any], config_class: type) -> Iterator[tuple[Path_, Any]]:
    of_config = [path for path in places(config) if all(isinstance(key, str) for key in path)]
    of_class = [name for name in dir(config_class) if not name.startswith("__")]
    fields = [name for name in config_class.__dataclass_fields__]
    paths = dict.fromkeys([*of_config, *((name,) for name in (*of_class, *fields, *FURTHER))])
    yield from ((path, value) for path in paths for value in VALUES)
    for rope in ROPES:
        for key in rope:
            yield from ((("rope_scaling",), {**rope, key: value}) for value in VALUES)
            yield ("rope_scaling",), {name: value for name, value in rope.items() if name != key}


def drawn(seed: int, count: int) -> Iterator[tuple[str, Path_, Any]]:
    """So many changes of all families', drawn at random."""
    pool = [
        (family, path, value)
        for family, judged in CLASSES.items()
        for path, value in changes(valid_draft(family).config, judged)
    ]
    yield from random.Random(seed).sample(pool, count)


def verdicts(folder: Path, target: Path, draft: Draft) -> tuple[str, str]:
    """What a check says, and a start: "refused" where the files are, which a start sees first."""
    begun = time.process_time()
    request = CheckRequest(draft=str(folder), target=str(target), k=draft.k, options={}, platform="cpu")
    try:
        result = run_check(request)
    except EagleExtError:
        return "refused by its files", ""
    finally:
        assert time.process_time() - begun < SECONDS
    if result.exit_code:
        return "refused by its files", ""
    final = dry.Final(result, dry.ask_engine(result, ["--skip-tokenizer-init"]))
    asked = {"method": result.method, "model": str(folder), "num_speculative_tokens": draft.k}
    keywords = {"model": str(target), "skip_tokenizer_init": True, "speculative_config": asked}
    started = warm_child.of_device(None).start(keywords, serve_environment(result))
    # A child that has no answer has died, or went beyond its time.
    said = final.verdict if final.answer.is_asked else f"not asked: {final.answer.why}"
    return said, "served" if started["served"] else "refused"


@pytest.mark.parametrize(
    ("seed", "count"),
    [pytest.param(1, 60, marks=pytest.mark.full), pytest.param(2, 3000, marks=pytest.mark.long)],
)
def test_a_check_says_what_a_start_says(monkeypatch, tmp_path, seed, count):
    monkeypatch.setattr(dry, "start_child", warm_child.start_warmly)
    target, said, wrong = write_target(tmp_path / "target"), Counter(), []
    drafts = {family: valid_draft(family) for family in CLASSES}
    places = {family: write(draft, tmp_path / family) for family, draft in drafts.items()}
    for family, path, value in drawn(seed, count):
        changed = copy.deepcopy(drafts[family].config)
        at(changed, path[:-1])[path[-1]] = value
        (places[family] / "config.json").write_text(json.dumps(changed))
        check, start = verdicts(places[family], target, drafts[family])
        said[check] += 1
        if start and check != start:
            wrong.append((family, ".".join(path), value, check, start))
    print(f"{count} configs: {dict(said)}")
    assert not wrong
    assert said["served"] > count // 20
    assert said["refused"] > count // 20
