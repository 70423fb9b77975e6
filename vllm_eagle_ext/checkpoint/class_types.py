# SPDX-License-Identifier: Apache-2.0
"""What config classes of transformers and vLLM declare, read in their source: importing loads torch.

Where transformers is not installed, a table of one release takes its place; a test holds the two equal.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# The class of these types is another's, in vLLM's registry or in ours.
_CLASS_OF = {"kimi_k2": "deepseek_v3", "deepseek_v32": "deepseek_v3", "dflash": "qwen3"}
TRANSFORMERS = "5.19.0"  # of the table
# Package, module and table of all that has a config class.
_REGISTRIES = (
    ("transformers", "models/auto/auto_mappings.py", "CONFIG_MAPPING_NAMES"),
    ("transformers", "models/auto/configuration_auto.py", "CONFIG_MAPPING_NAMES"),
    ("vllm", "transformers_utils/config.py", "_CONFIG_REGISTRY"),
)
_IN_ALL = {
    "bool": "attention_bias tie_word_embeddings use_cache",
    "int": "hidden_size intermediate_size max_position_embeddings num_attention_heads num_hidden_layers "
    "vocab_size",
    "float": "initializer_range rms_norm_eps",
    "str": "hidden_act",
    "int | None": "bos_token_id num_key_value_heads pad_token_id",
    "int | list[int] | None": "eos_token_id",
    "RopeParameters | dict | None": "rope_parameters",
}
_TABLE: Mapping[str, Mapping[str, str]] = {
    "llama": {
        "bool": "mlp_bias",
        "int | None": "head_dim pretraining_tp",
        "int | float | None": "attention_dropout",
    },
    "qwen3": {
        "bool": "use_sliding_window",
        "int": "head_dim max_window_layers",
        "int | None": "sliding_window",
        "float | int": "attention_dropout",
        "list[str] | None": "layer_types",
    },
    "deepseek_v3": {
        "bool": "output_router_logits",
        "bool | None": "norm_topk_prob rope_interleave",
        "int": "kv_lora_rank moe_intermediate_size n_routed_experts n_shared_experts num_mtp_layers "
        "qk_nope_head_dim qk_rope_head_dim",
        "int | None": "first_k_dense_replace n_group num_experts_per_tok pretraining_tp q_lora_rank "
        "topk_group v_head_dim",
        "float": "routed_scaling_factor",
        "float | int | None": "attention_dropout",
    },
}
_DIVIDING = ("llama",)
# Methods and properties of the base class, which a key of the same name takes the place of.
OF_THE_CLASS = frozenset(
    {
        "_check_received_keys", "_decode_special_floats", "_dict_from_json_file",
        "_encode_special_floats", "_get_config_dict", "_get_files_timestamps",
        "_get_generation_parameters", "_getattr_without_heterogeneous_validation",
        "_hasattr_without_heterogeneous_validation", "_iter_config_keys_with_heterogeneous_adjustment",
        "_remove_keys_not_serialized", "_update_heterogeneous_to_dict_output",
        "_upload_modified_files", "_validate_axial_rope_parameters",
        "_validate_default_rope_parameters", "_validate_dynamic_rope_parameters",
        "_validate_linear_rope_parameters", "_validate_llama3_rope_parameters",
        "_validate_longrope_rope_parameters", "_validate_proportional_rope_parameters",
        "_validate_yarn_rope_parameters", "convert_rope_params_to_dict",
        "dict_dtype_to_str", "from_dict", "from_json_file", "from_pretrained", "get_config_dict",
        "get_mtp_config", "get_text_config", "is_custom_code", "is_heterogeneous", "is_remote_code",
        "nested_rope_parameter_keys", "per_layer_attributes", "push_to_hub",
        "register_for_auto_class", "save_pretrained", "standardize_rope_params",
        "to_dict", "to_diff_dict", "to_json_file", "to_json_string", "update", "update_from_string",
        "use_return_dict", "validate", "validate_architecture", "validate_layer_type",
        "validate_output_attentions", "validate_rope", "validate_token_ids",
    }
)  # fmt: skip


def class_types(model_type: str) -> Mapping[str, str]:
    """Return key -> annotation of the config class of a model type; empty for a type without one."""
    name = _CLASS_OF.get(model_type, model_type)
    found = _read_types(name)
    return table_types(name) if found is None else found


def table_types(name: str) -> Mapping[str, str]:
    """Return what the table has; of an unknown type what all classes share."""
    blocks = (_IN_ALL, _TABLE.get(name, {}))
    return {key: kind for block in blocks for kind, keys in block.items() for key in keys.split()}


@cache
def _read_types(name: str) -> Mapping[str, str] | None:
    """Read the annotations of a class in transformers' source; None: it is not installed."""
    if not name.isidentifier():
        return {}
    body = _body_of("transformers", f"models/{name}/configuration_{name}.py")
    if body is None:
        return None
    return next((_annotations(node) for node in body if _is_class_of(node, name)), {})


@cache
def demands_dividing_heads(model_type: str) -> bool:
    """Tell whether a class wants `hidden_size` to be a multiple of `num_attention_heads`."""
    name = _CLASS_OF.get(model_type, model_type)
    found = _body_of("transformers", f"models/{name}/configuration_{name}.py")
    if found is None:
        return name in _DIVIDING
    classes = [node for node in found if _is_class_of(node, name)]
    return any("self.hidden_size % self.num_attention_heads" in ast.unparse(node) for node in classes)


@cache
def speculative_fields() -> frozenset[str] | None:
    """Return the fields of the installed vLLM's SpeculativeConfig; None: it is not installed."""
    body = _body_of("vllm", "config/speculative.py") or []
    found = [node for node in body if getattr(node, "name", None) == "SpeculativeConfig"]
    return frozenset(_annotations(found[0])) if found else None


@cache
def attention_backends() -> frozenset[str] | None:
    """Return the names of the installed vLLM's attention backends; None: they are not known."""
    body = _body_of("vllm", "v1/attention/backends/registry.py") or []
    found = [node for node in body if getattr(node, "name", None) == "AttentionBackendEnum"]
    stated = [
        inner for one in found for inner in getattr(one, "body", ()) if isinstance(inner, ast.Assign)
    ]
    return frozenset(ast.unparse(one.targets[0]) for one in stated) or None


def _body_of(package: str, place: str) -> list[ast.stmt] | None:
    """Parse a module of a package without importing it.

    Returns:
        Nothing where there is no such module, None where the package is not installed.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        source = Path(spec.submodule_search_locations[0], place).read_text(encoding="utf-8")
        return ast.parse(source).body
    except (OSError, SyntaxError, ValueError):
        return []


def _is_class_of(node: ast.stmt, name: str) -> bool:
    wanted = f"model_type = {name!r}"
    return isinstance(node, ast.ClassDef) and any(ast.unparse(inner) == wanted for inner in node.body)


def _annotations(node: Any) -> Mapping[str, str]:
    stated = (inner for inner in node.body if isinstance(inner, ast.AnnAssign))
    return {ast.unparse(one.target): ast.unparse(one.annotation) for one in stated}


@cache
def readable_model_types() -> frozenset[str] | None:
    """Return the model types that the installed vLLM and transformers can read; None: there are none."""
    found: set[str] = set()
    for package, place, names in _REGISTRIES:
        body = _body_of(package, place)
        if not body:
            return None
        found.update(_names_in(body, names))
    return frozenset(found)


def _names_in(body: list[ast.stmt], table: str) -> Iterator[str]:
    """Yield the keys of a table, which a module writes out as a dict, as pairs or as keywords."""
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        stated = any(isinstance(each, ast.Name) and each.id == table for each in targets)
        is_update = isinstance(node, ast.Expr) and ast.unparse(node).startswith(f"{table}.update(")
        for inner in ast.walk(node) if stated or is_update else ():
            keys: list[Any] = []
            match inner:
                case ast.Dict():
                    keys = inner.keys
                case ast.Tuple(elts=[key, _]):
                    keys = [key]
                case ast.keyword(arg=str(name)):
                    yield name
            yield from (str(key.value) for key in keys if isinstance(key, ast.Constant))
