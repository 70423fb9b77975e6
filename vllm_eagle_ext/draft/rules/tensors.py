# SPDX-License-Identifier: Apache-2.0
"""Rules about names, shapes, dtypes and values of the tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vllm_eagle_ext.draft.attention import SEPARATE_GATES
from vllm_eagle_ext.draft.expected_tensors import belongs_to_quantised
from vllm_eagle_ext.draft.findings import (
    AS_TRAINED,
    BELONGS,
    Problem,
    Problems,
    Severity,
    key_problem,
    rule,
)
from vllm_eagle_ext.draft.foreign_drafts import ANOTHER, foreign_part, name_edit, own_architecture
from vllm_eagle_ext.draft.quantisation import FLOATS, quantised_weights
from vllm_eagle_ext.draft.read_spec import layers_in
from vllm_eagle_ext.draft.registry import published
from vllm_eagle_ext.draft.spec import Case
from vllm_eagle_ext.draft.tensors import COMPUTED, HOLDS_WEIGHTS

_DTYPES = {"float": FLOATS, "integer": ("I64", "I32", "I16"), "mask": ("BOOL", "U8", "I8")}

_SHOWN = 40  # names in a message: more than one layer has


def _present(case: Case, name: str) -> bool:
    if name in case.files.tensors:
        return True
    if case.spec.quantisation is None or not name.endswith(".weight"):
        return False
    module = name.removesuffix("weight")
    return any(module + suffix in case.files.tensors for suffix in HOLDS_WEIGHTS)


@rule(Severity.ERROR, of="eagle3")
def draft_is_no_plain_model(case: Case) -> Problems:
    """An EAGLE-3 draft of several layers has `fc` or `hidden_norm`. A plain model has neither."""
    layers = case.config.num_hidden_layers
    marks = ("fc.weight", "layers.0.hidden_norm.weight")
    if not case.has_tensors or layers == 1:
        return
    if not any(name in case.files.tensors for name in marks):
        yield Problem(
            field="the draft",
            value=f"no draft: it has {layers} layers and no fc",
            allowed="an EAGLE-3 draft, whose fc reads the target's states",
            remedy="name the draft; this looks like a whole model, such as a target"
            if case.config.pard_token is None
            else 'write "method": "draft_model" and "parallel_drafting": true for a PARD draft',
        )


@rule(Severity.ERROR)
def tensors_are_complete(case: Case) -> Problems:
    """Every tensor is there. vLLM leaves a module without weights uninitialised, silently."""
    if not case.has_tensors:
        return
    # Those have rules that say more.
    apart = ("fc_norm.", "input_norm.", "lm_head.", "d2t")
    missing = [
        name
        for name, expected in case.expected.items()
        if not expected.optional and not name.startswith(apart) and not _present(case, name)
    ]
    if missing:
        yield Problem(
            field="tensors of the draft",
            value=f"without {_listing(missing)}",
            allowed="every tensor of a draft of this config",
            remedy=how_to_complete(case, missing),
        )


@rule(Severity.WARNING, of="eagle3")
def depth_is_the_drafts_own(case: Case) -> Problems:
    """`num_hidden_layers` counts the draft's layers."""
    depth = case.files.config.get("num_hidden_layers")
    types = ', "layer_types": ["full_attention"]' * ("layer_types" in case.files.config)
    if case.spec.format == "published" and depth != case.spec.num_layers:
        yield key_problem(
            "num_hidden_layers",
            depth,
            allowed="1, and one layer is served, which attends to all tokens: the files hold one, and "
            "the number is the target's",
            remedy=f'state the same: edit config.json: "num_hidden_layers": 1{types}',
        )


@rule(Severity.ERROR, can_run=True)
def tensors_are_expected(case: Case) -> Problems:
    """The drafter uses every weight and bias. vLLM drops unknown biases silently."""
    table = case.expected
    # Those have rules that say more.
    norms = ("fc_norm.",) if case.spec.family.has_flags else ()
    apart = ("fc.weight", "d2t", "t2d", *(("input_norm.weight",) if norms else ()))
    unexpected = [
        name
        for name in case.files.tensors
        if name not in table
        and name not in apart
        and not (norms and name.startswith(norms))
        and not name.endswith(COMPUTED)
        and not belongs_to_quantised(case.spec, name, table)
    ]
    if unexpected:
        yield Problem(
            field="tensors of the draft",
            value=_listing([case.files.tensors[name].published for name in unexpected]),
            allowed="only tensors that the drafter computes with",
            remedy=why_unexpected(case, unexpected),
        )


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


@rule(Severity.ERROR)
def tensor_shapes_fit(case: Case) -> Problems:
    """Shapes follow config.json."""
    apart = ("fc.", "d2t", "t2d")
    parts = "qkv" if case.spec.drafter.backbone.has_kv_heads else ""
    by_head = tuple(f"self_attn.{part}_proj.weight" for part in parts)
    for name, expected in case.expected.items():
        header = case.files.tensors.get(name)
        if header is None or name.startswith(apart) or header.shape in expected.shapes:
            continue
        is_taller = name.endswith(by_head) and header.shape[:1] > expected.shape[:1]  # another rule's
        if is_taller or _is_packed(case, name):
            continue
        yield Problem(
            field=f"shape of {header.published}",
            value=header.shape,
            allowed=f"{' or '.join(map(str, expected.shapes))}, from the sizes in config.json",
            remedy=BELONGS,
        )


def _is_packed(case: Case, name: str) -> bool:
    """Tell whether an element holds several values: it does in a quantised `weight` of U8 or F4."""
    return case.spec.quantisation is not None and case.files.tensors[name].dtype in ("U8", "F4")


@rule(Severity.ERROR)
def attention_is_not_narrowed(case: Case) -> Problems:
    """`q_proj`, `k_proj` and `v_proj` have no surplus rows. vLLM drops them silently."""
    if not case.spec.drafter.backbone.has_kv_heads:
        return
    heads, gate = case.spec.heads, case.spec.gate
    gate_in_q = gate.rows(heads) if gate and gate.module == "q_proj" else 0
    kv_rows = heads.kv * heads.dim
    rows = {"q": heads.query * heads.dim + gate_in_q, "k": kv_rows, "v": kv_rows}
    for name, header in case.files.tensors.items():
        module, _, suffix = name.rpartition(".")
        wanted = rows.get(module[-6:-5]) if module.endswith(("q_proj", "k_proj", "v_proj")) else None
        if wanted is None or suffix not in ("weight", "weight_packed") or not header.shape:
            continue
        if header.shape[0] > wanted:
            yield Problem(
                field=f"rows of {header.published}",
                value=header.shape[0],
                allowed=_rows_allowed(case, wanted, is_query=module.endswith("q_proj")),
                remedy=BELONGS,
            )


def _rows_allowed(case: Case, wanted: int, *, is_query: bool) -> str:
    allowed = f"{wanted}, from the heads and head_dim of config.json"
    if not is_query or case.spec.gate or not case.spec.drafter.can_gate:
        return allowed
    query, heads = wanted, case.spec.heads.query
    return f"{allowed}; with a gate {2 * query} (one per element) or {query + heads} (one per head)"


@rule(Severity.ERROR)
def tensor_dtypes_fit(case: Case) -> Problems:
    """Dtypes fit, or `quantization_config` exists."""
    quantised = quantised_weights(case.files.tensors)
    for name, expected in case.expected.items():
        header = case.files.tensors.get(name)
        if header is None or header.dtype in _DTYPES[expected.kind]:
            continue
        if case.spec.quantisation is None or name.rpartition(".")[0] not in quantised:
            yield Problem(
                field=f"dtype of {header.published}",
                value=header.dtype,
                allowed=", ".join(_DTYPES[expected.kind]),
                remedy="export it again; quantised weights need a quantization_config in config.json",
            )


@rule(Severity.ERROR)
def weights_are_finite(case: Case) -> Problems:
    """Norms and biases are finite; with `--weights` all tensors. vLLM's classes look at none."""
    if counts := {name: count for name, count in case.files.non_finite.items() if count}:
        names = [case.files.tensors[name].published for name in counts]
        yield Problem(
            field=f"values of {_listing(names)}",
            value=f"{sum(counts.values())} infinite or NaN",
            allowed="finite numbers",
            remedy="download the file again, or ask the publisher: it is damaged, or training diverged",
        )


@rule(Severity.ERROR)
def fc_reads_every_aux_layer(case: Case) -> Problems:
    """`fc` is as wide as all aux layers."""
    header, spec = case.files.tensors.get("fc.weight"), case.spec
    if header is None or _is_packed(case, "fc.weight"):
        return
    if not spec.fuses_aux_states:
        yield key_problem(
            "use_aux_hidden_state",
            False,
            allowed="true, because the weights have an fc.weight that fuses aux states",
            remedy=BELONGS,
        )
        return
    n = len(spec.aux_layers.layer_ids)
    expected = (spec.hidden_size, n * spec.target_hidden_size)
    if header.shape != expected:
        yield Problem(
            field=f"shape of {header.published}",
            value=header.shape,
            allowed=f"{expected}: {n} aux layers ({spec.aux_layers.rule}) of width "
            f"{spec.target_hidden_size}",
            remedy='name as many layers as fc reads: {"eagle_ext": {"aux_layers": [..]}}',
        )


@rule(Severity.ERROR, of="fused q, k and v")
def bias_is_called_attention_bias(case: Case) -> Problems:
    """`attention_bias` replaces `bias`. vLLM's EAGLE-3 layer does not read `bias` for q, k and v."""
    if case.config.bias and not case.config.attention_bias:
        yield key_problem(
            "bias",
            True,
            allowed='"attention_bias": true, the key that all of vLLM\'s layers read',
            remedy="edit config.json, if the weights have biases; remove the key otherwise",
        )


@rule(Severity.ERROR, of="latent attention")
def mla_sizes_are_stated(case: Case) -> Problems:
    """MLA drafts state ranks and head sizes."""
    for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        if getattr(case.config, key) is None:
            yield key_problem(
                key, None,
                allowed="a positive integer",
                remedy=AS_TRAINED,
            )  # fmt: skip


@rule(Severity.WARNING)
def weights_can_be_checked(case: Case) -> Problems:
    """Weights are safetensors, not `.bin`."""
    if not case.has_tensors:
        yield Problem(
            field="weights of the draft",
            value=".bin",
            allowed="safetensors, whose names and shapes can be read beforehand; these are checked "
            "only after they are loaded, without unpickling anything but tensors",
            remedy="convert them to safetensors",
        )


_DIGITS = 6  # of a layer's number; a longer one is no layer of any draft
_SCALES = ("scale", "scale_inv", "scale_2", "zero_point", "scales", "qzeros", "g_idx", "weight_shape")


def how_to_complete(case: Case, missing: list[str]) -> str:
    """Say what makes the files and the config agree, by what is missing."""
    download = "download all files of the draft"
    if all(name.endswith(".bias") for name in missing):
        biases = {name for name in case.files.tensors if name.endswith(".bias")}
        if any(".self_attn." in name for name in missing) and _attention_biases(biases) == _QKV:
            return _three_biases(case)
        keys = [key for key, part in _BIASES.items() if any(part in name for name in missing)]
        edit = ", ".join(f'"{key}": false' for key in keys)
        return f"if it was trained without biases, edit config.json: {edit}; otherwise {download}"
    depth = layers_in(case.files)
    beyond = all(_layer(name) >= depth for name in missing)
    if 0 < depth < case.spec.num_layers and beyond:
        return f"if it was trained with {depth_edit(case.flat, depth)}; otherwise {download}"
    if other := _another_architecture(case):
        return f"if its trainer computes the same, {name_edit(other)}; otherwise {download}"
    return f"{download}; if they are here, its trainer wrote a config of other layers: {ANOTHER}"


def _layer(name: str) -> int:
    """Return the layer that a tensor belongs to, or -1."""
    number = name.split(".")[1] if name.startswith("layers.") else ""
    if not number.isdecimal():
        return -1
    return int(number) if len(number) < _DIGITS else 10**_DIGITS


def depth_edit(flat: Mapping[str, Any], layers: int) -> str:
    """Return the edit of config.json that states a number of layers, in words that follow "with"."""
    number = f"{layers} layer" + "s" * (layers > 1)
    types = flat.get("layer_types")
    listed = f', "layer_types" with {layers} of its entries' if isinstance(types, list) else ""
    return f'{number}, edit config.json: "num_hidden_layers": {layers}{listed}'


def _another_architecture(case: Case) -> str | None:
    """Return the name of the drafter whose tensors these are, where it is not the draft's own."""
    fitting = own_architecture(case.files)
    return fitting if fitting and published().get(fitting) != case.spec.drafter else None


_QKV = frozenset("qkv")
_BIASES = {"attention_bias": ".self_attn.", "mlp_bias": ".mlp."}


def _attention_biases(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.rpartition("self_attn.")[2][0] for name in names if ".self_attn." in name)


def _biased(case: Case) -> frozenset[str]:
    """Return which projections have a bias with attention_bias: in vLLM's Qwen3 layer not o_proj."""
    spec = case.spec
    is_qwen3s = spec.drafter.backbone.norms_heads and spec.drafter.method == "eagle3"
    return _QKV if is_qwen3s else _QKV | {"o"}


def _three_biases(case: Case) -> str:
    """Say what becomes of biases of q, k and v where o_proj has none."""
    if _biased(case) == _QKV:
        return 'edit config.json: "attention_bias": true'
    return (
        f"vLLM's {case.spec.title} layer reads attention_bias, which asks for a bias of o_proj too, and "
        "would drop those of q, k and v without it: add an o_proj.bias of zeros to the file and "
        f'"attention_bias": true to config.json, or {ANOTHER}'
    )


def why_unexpected(case: Case, names: list[str]) -> str:
    """Say what a draft with further tensors is, by their names."""
    gates = tuple(f".self_attn.{gate}." for gate in SEPARATE_GATES) if case.spec.drafter.can_gate else ()
    foreign = [name for name in names if not any(gate in name for gate in gates)]
    if reason := foreign_part(foreign):
        return reason
    if other := _another_architecture(case):
        return f"if its trainer computes what {other} does, {name_edit(other)}; otherwise {ANOTHER}"
    if all(name.endswith(".bias") for name in names):
        return _why_biased(case, names)
    beyond = {_layer(name) for name in names if _layer(name) >= case.spec.num_layers}
    if beyond and all(_layer(name) in beyond for name in names):
        return f"if it was trained with {depth_edit(case.flat, max(beyond) + 1)}; otherwise {ANOTHER}"
    if case.spec.quantisation is None and all(name.endswith(_SCALES) for name in names):
        return "state how it is quantised: quantization_config in config.json, as its exporter wrote it"
    return (
        f"no drafter of vLLM computes with them: {ANOTHER}, or export it without them, if its trainer "
        "did not use them"
    )


def _why_biased(case: Case, names: list[str]) -> str:
    spec, config = case.spec, case.config
    attention = _attention_biases(names)
    is_attention = all(".self_attn." in name for name in names)
    if is_attention and attention == _biased(case) and not config.attention_bias:
        return 'edit config.json: "attention_bias": true'
    if is_attention and attention == _QKV:
        return _three_biases(case)
    is_mlp = all(".mlp." in name for name in names)
    if is_mlp and spec.drafter.backbone.has_mlp_bias and not config.mlp_bias and len(names) % 3 == 0:
        return 'edit config.json: "mlp_bias": true'
    return f"no drafter of vLLM computes these biases in such a draft: {ANOTHER}"
