"""Each key of a draft's config in each wrong type: what `check` approves, vLLM builds a config of."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.fuzz.changes import Path_, at, places
from tests.fuzz.run import Worker
from tests.support.checkpoints import write_target
from tests.support.drafts import valid_draft, write
from vllm_eagle_ext.errors import EagleExtError
from vllm_eagle_ext.preflight.check import CheckRequest, CheckResult, run_check
from vllm_eagle_ext.preflight.serve import serve_command

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
    stated = [path for path in places(config) if all(isinstance(key, str) for key in path)]
    of_class = [name for name in dir(config_class) if not name.startswith("__")]
    fields = [name for name in config_class.__dataclass_fields__]
    paths = dict.fromkeys([*stated, *((name,) for name in (*of_class, *fields, *FURTHER))])
    yield from ((path, value) for path in paths for value in VALUES)
    for rope in ROPES:
        for key in rope:
            yield from ((("rope_scaling",), {**rope, key: value}) for value in VALUES)
            yield ("rope_scaling",), {name: value for name, value in rope.items() if name != key}


def approved(folder: Path, target: Path, k: int) -> CheckResult | None:
    try:
        result = run_check(
            CheckRequest(draft=str(folder), target=str(target), k=k, options={}, platform="cuda")
        )
    except EagleExtError:
        return None
    return result if result.inspection.spec and not result.exit_code else None


@pytest.mark.full
@pytest.mark.parametrize(
    "family",
    [
        "native",
        *(
            pytest.param(family, marks=pytest.mark.long)
            for family in ("mla", "quantised", "qwen3", "speculators")
        ),
    ],
)  # fmt: skip
def test_what_is_approved_is_built(family, tmp_path):
    draft, worker, target = valid_draft(family), Worker("build"), write_target(tmp_path / "target")
    folder = write(draft, tmp_path / "draft")
    config = json.loads((folder / "config.json").read_text())
    failed, built = [], 0
    for path, value in changes(config, CLASSES[family]):
        changed = copy.deepcopy(config)
        at(changed, path[:-1])[path[-1]] = value
        (folder / "config.json").write_text(json.dumps(changed))
        if result := approved(folder, target, draft.k):
            built += 1
            answer = worker.run(serve_command(result))
            failed += [(".".join(path), value, answer["failure"])] if answer["failure"] else []
    worker.close()
    print(f"{family}: {built} approved")
    assert built > 300
    assert not failed
