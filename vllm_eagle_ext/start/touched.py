# SPDX-License-Identifier: Apache-2.0
"""Prints what the package replaces of vLLM, as the docstrings of the code that replaces it say it.

`python -m vllm_eagle_ext.start.touched` shows symptom, cause, seam and condition for removal of each.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

_REPLACING = ("compat.py", "start/described.py")

ELSEWHERE = """\
Nothing else replaces a name. What the package adds or sets, where, and when that can go:

- On installation: the entry point in vllm.general_plugins (pyproject.toml). Never: vLLM's own way.
- In every process: drafters and replaying targets in ModelRegistry.models (plugin.py). Never, as above.
  An import hook in sys.meta_path until the modules to wrap are imported (compat.py:when_loaded).
- In the front end, with a draft:
  - CONFIG_MAPPING of transformers, for the model type `dflash` (families/dflash/config_writer.py), until
    transformers or vLLM has a config class for it;
  - resolved values in the draft's ModelConfig (start/apply.py, families/*/config_writer.py), until
    vLLM has one resolver of a draft's config;
  - EngineArgs.scheduler_cls (start/apply_engine.py; start/schedulers.py says when it can go), and
    EngineArgs.disable_hybrid_kv_cache_manager, until vLLM groups layers without regard to the draft's;
  - logging's record factory, sys.excepthook and the environment variable EAGLE_EXT_NOTES
    (start/failed_start.py), until vLLM's front end raises the error of the worker;
  - gauges in prometheus_client's registry (start/metrics.py). Never: its documented way.
- With replay:
  - MODELS_CONFIG_MAP and the target's architecture (compat.py), until vLLM lets a plugin choose
    the architecture and finds a config's update by class;
  - in a worker the class of QwenGatedDeltaNetAttention layers with their _forward_method
    (replay/layer.py), until vLLM takes such layers from a registry; the target's class back to vLLM's if
    the self-check fails (replay/targets.py).
- In a worker, of a draft: class and qkv_proj of gated attention (families/parts/gated_attention.py),
  until vLLM's drafters take it; embed_tokens with LoRA (families/parts/resolved.py), until V1 shares
  them.
- In workers of `bench` and `verify`: methods that time a step (measure/engine/probe.py), until vLLM's
  metrics tell target and draft apart.
"""


def replacements() -> dict[str, str]:
    """Read the docstrings that give a condition for removal, by the place of their code."""
    package = Path(__file__).parents[1]
    found = {}
    for source in _REPLACING:
        module = source.removesuffix(".py").replace("/", ".")
        for node in ast.walk(ast.parse((package / source).read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                docstring = ast.get_docstring(node) or ""
                if "REMOVE WHEN" in docstring:
                    found[f"{module}.{node.name}"] = docstring
    return found


def printed() -> str:
    """Compose what the command prints."""
    indented = [
        f"{place}\n" + "".join(f"    {line}".rstrip() + "\n" for line in docstring.splitlines())
        for place, docstring in replacements().items()
    ]
    return "\n".join([*indented, ELSEWHERE])


if __name__ == "__main__":
    sys.stdout.write(printed())
