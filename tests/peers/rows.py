"""The matrix: which drafts are written, by whom, and what must be said of them and computed with them.

Every number in a config is a flag's: what a row does not name is the writer's default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.peers import of_angelslim, of_specforge, of_speculators, of_zlab
from tests.peers.chains import Chains
from tests.peers.texts import HYBRID, TARGET
from tests.support.engine import TINY

SPECULATORS, SPECFORGE, ZLAB, ANGELSLIM = "speculators", "specforge", "dflash", "angelslim"

IDS = "aux_layers_are_stated"
FEEDBACK = "norm_output_is_unambiguous"
SHARED = "shared_parts_are_usual"
ORDER = "aux_order_is_unambiguous"
ROPE = "rope_matches_the_target"
LENGTH = "trained_length_covers_max_model_len"


@dataclass(frozen=True)
class Row:
    name: str
    peers: tuple[str, ...]  # distributions that write the draft and draft with it
    write: Callable[[Path], Path]
    draft: Callable[[Path, tuple[int, ...], str], Chains] | None
    target: str = TARGET
    chained: bool = True  # a token depends on those before it
    options: Mapping[str, Any] = field(default_factory=dict)  # additional_config.eagle_ext
    refused: tuple[str, ...] = ()  # words of the error; (): served
    warnings: frozenset[str] = frozenset()  # rules that warn, and no others may
    engine: bool = True  # on the hybrid target none does: near-ties diverge in bf16

    def __str__(self) -> str:
        return self.name


def _row(name: str, peers: str, write: Any, draft: Any, *warnings: str, **settings: Any) -> Row:
    if settings.get("target") == HYBRID:
        settings["engine"] = False
    return Row(name, tuple(peers.split()), write, draft, warnings=frozenset(warnings), **settings)


_PLAIN = {"norm_before_residual": False, "norm_before_fc": False, "norm_output": False}
_FULL = {"full_attention_indices": [0]}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}


def _speculators(
    algorithm: str, name: str, *warnings: str, flags: Mapping[str, Any] | None = None, **settings: Any
) -> Row:
    chained, target = algorithm in ("eagle3", "dflash2", "dspark"), settings.get("target", TARGET)
    write = partial(of_speculators.write, algorithm=algorithm, verifier=target, **flags or {})
    title = f"speculators {algorithm}: {name}"
    return _row(title, SPECULATORS, write, of_speculators.draft, *warnings, chained=chained, **settings)


def _eagle3(name: str, *warnings: str, target: str = TARGET, **flags: Any) -> Row:
    whole = _PLAIN | _FULL | flags
    return _speculators("eagle3", name, *warnings, flags=whole, target=target)


_REDUCED = {"draft_vocab_size": 256}
_TWO = {"num_layers": 2, "full_attention_indices": [0, 1]}
SPECULATORS_EAGLE3 = [
    _speculators("eagle3", "defaults"),
    _eagle3("plain"),
    _eagle3("norm_before_residual", norm_before_residual=True),
    _eagle3("norm_before_fc", norm_before_fc=True),
    _eagle3("fc_norm", fc_norm=True),
    _eagle3("norm_output", norm_output=True),
    _eagle3("two layers", **_TWO),
    _eagle3("own embeddings, d2t", own_embeddings=True, **_REDUCED),
    _eagle3("ids 0 6 12", target_layer_ids=[0, 6, 12]),
    _eagle3(
        "EAGLE 3.1, five layers, d2t",
        fc_norm=True, norm_output=True, target_layer_ids=[1, 3, 5, 7, 9], **_REDUCED,
    ),
    _eagle3("Qwen3 layer, d2t", draft_arch="qwen3", **_REDUCED),
    _eagle3("ids 9 2 6", target_layer_ids=[9, 2, 6]),
    _eagle3("attention_bias", attention_bias=True),
    _eagle3("mlp_bias", mlp_bias=True),
    _speculators("eagle3", "window 16", flags={"sliding_window": 16}),
    _eagle3("hybrid target", target=HYBRID),
]  # fmt: skip

SPECULATORS_PEAGLE = [
    _speculators("peagle", "defaults"),
    _speculators("peagle", "two layers, d2t", flags={"num_layers": 2, **_REDUCED}),
    _speculators("peagle", "fc_norm", flags={"fc_norm": True}),
    _speculators("peagle", "norm_before_fc", flags={"norm_before_fc": True}),
    _speculators("peagle", "norm_output", flags={"norm_output": True}),
    _speculators("peagle", "hybrid target", target=HYBRID),
]


def _dflash(name: str, *warnings: str, **settings: Any) -> Row:
    flags = {"num_layers": 2} | settings.pop("flags", {})
    return _speculators("dflash", name, *warnings, flags=flags, **settings)


_YARN_HERE = {"rope_parameters": {"rope_theta": 10000.0, **_YARN, **_BETAS}}
SPECULATORS_DFLASH = [
    _dflash("defaults"),
    _dflash("full attention", flags={"full_attention_indices": [0, 1]}),
    _dflash("d2t", flags=_REDUCED),
    _dflash("hybrid target", target=HYBRID),
    _dflash("window 16", flags={"sliding_window": 16}),
    _dflash("window 16, not causal", flags={"sliding_window": 16, "sliding_window_non_causal": True}),
    # Windowed and full layers in one draft: the V2 runner alone, whose kernels are no CPU's.
    _dflash("window 16, mixed", flags={"sliding_window": 16, **_FULL}, engine=False),
    _dflash("YaRN", ROPE, LENGTH, flags=_YARN_HERE),
    _dflash(
        "YaRN without betas", ROPE, LENGTH, flags={"rope_parameters": {"rope_theta": 1e4, **_YARN}}
    ),
    _dflash(
        "sample_from_anchor", flags={"sample_from_anchor": True},
        refused=("sample_from_anchor",), engine=False,
    ),
]  # fmt: skip


def _second_head(algorithm: str, name: str, *warnings: str, **settings: Any) -> Row:
    """vLLM's own classes draft with it, on the V2 runner alone, whose kernels are no CPU's."""
    flags = {"num_layers": 2} | settings.pop("flags", {})
    return _speculators(algorithm, name, *warnings, flags=flags, engine=False, **settings)


SPECULATORS_SECOND_HEADS = [
    _second_head("dflash2", "defaults"),
    _second_head(
        "dflash2", "four taps, eight candidates",
        flags={"conv_kernel_size": 4, "conv_group_size": 8, "selector_rank": 32, "selector_top_k": 8},
    ),
    _second_head("dflash2", "hybrid target", target=HYBRID),
    _second_head("dspark", "defaults"),
    _second_head("dspark", "d2t", flags=_REDUCED),
    _second_head("dspark", "the first position is not drafted", flags={"sample_from_anchor": False}),
    _second_head("dspark", "no confidence head", flags={"enable_confidence_head": False}),
    _second_head("dspark", "hybrid target", target=HYBRID),
]  # fmt: skip


def _converted(source: str, algorithm: str, target: str, *warnings: str) -> Row:
    folder = f"examples/tiny/{source}"
    write = partial(of_speculators.convert, source=folder, algorithm=algorithm, verifier=target)
    title, chained = f"speculators' converter: tiny/{source}", algorithm == "eagle3"
    return _row(
        title, SPECULATORS, write, of_speculators.draft, *warnings, target=target, chained=chained
    )


CONVERTED = [_converted("native", "eagle3", TARGET, IDS, SHARED), _converted("dflash", "dflash", HYBRID)]


def _specforge(kind: str, name: str, *warnings: str, **settings: Any) -> Row:
    target = settings.get("target", TARGET)
    write = partial(of_specforge.write, kind=kind, verifier=target, **settings.pop("flags", {}))
    draft = settings.pop("draft", of_specforge.draft)
    title = f"SpecForge {kind}: {name}"
    chained = kind == "eagle3"
    return _row(title, SPECFORGE, write, draft, *warnings, chained=chained, **settings)


_NESTED = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True}}
_E31 = {"fc_norm": True, "norm_output": True}
_WINDOWED = {"sliding_window": 16, "use_sliding_window": True}
_WINDOWS = {"layer_types": ["sliding_attention"] * 2, **_WINDOWED}
SPECFORGE_ROWS = [
    _specforge("eagle3", "default", IDS),
    _specforge("eagle3", "nested ids", flags=_NESTED),
    # The file does not say that this version feeds back the raw state: read as newer ones mean it.
    _specforge("eagle3", "EAGLE 3.1 as newer versions mean it", IDS, FEEDBACK, flags=_E31, draft=None),
    _specforge(
        "eagle3", "EAGLE 3.1, norm_output: false", IDS,
        flags=_E31, options={"norm_output": False},
    ),
    _specforge(
        "eagle3", "full vocabulary", IDS, flags={"draft_vocab_size": 1536}
    ),
    _specforge("peagle", "default", IDS, flags={"mask_token_id": of_specforge.MASK}),
    _specforge(
        "peagle", "no mask token in its file", refused=("mask_token_id",), draft=None, engine=False
    ),
    _specforge("dflash", "full attention"),
    _specforge("dflash", "window 16", flags=_WINDOWS),
    _specforge(
        "dflash", "window 16, mixed", engine=False,
        flags={"layer_types": ["sliding_attention", "full_attention"], **_WINDOWED},
    ),
    _specforge("dflash", "hybrid target", target=HYBRID),
]  # fmt: skip


def _zlab(name: str, *warnings: str, **settings: Any) -> Row:
    """SpecForge's file, z-lab's forward: the two share the format."""
    flags = settings.pop("flags", {})
    write = partial(of_specforge.write, kind="dflash", **flags)
    title, peers = f"z-lab on SpecForge dflash: {name}", f"{SPECFORGE} {ZLAB}"
    return _row(title, peers, write, of_zlab.draft, *warnings, chained=False, **settings)


def _at(folder: str) -> Callable[[Path], Path]:
    return lambda _: TINY / folder


def _dflash_config(**changes: Any) -> dict[str, Any]:
    return {
        "dflash_config": {"mask_token_id": of_specforge.MASK, "target_layer_ids": [1, 5, 8]} | changes
    }


ZLAB_ROWS = [
    _row("z-lab on tiny/dflash", ZLAB, _at("dflash"), of_zlab.draft, target=HYBRID, chained=False),
    _zlab("full attention"),
    _zlab("window 16", flags=_WINDOWS),
    _zlab("is_causal", flags={"is_causal": True}),
    _zlab("YaRN", ROPE, LENGTH, flags={"rope_scaling": _YARN | _BETAS}),
    _zlab("ids 8 1 5", ORDER, flags=_dflash_config(target_layer_ids=[8, 1, 5])),
    _zlab("input_embedding_scale 8", flags=_dflash_config(input_embedding_scale=8.0)),
]


def _angelslim(name: str, *warnings: str, **changes: Any) -> Row:
    write = partial(of_angelslim.write, **changes)
    title = f"AngelSlim eagle3: {name}"
    return _row(title, ANGELSLIM, write, of_angelslim.draft, *warnings)


ANGELSLIM_ROWS = [
    _angelslim("default", IDS),
    _angelslim("ids 0 3 7", aux_hidden_states_layer_ids=[0, 3, 7]),
    _angelslim("ids 7 0 3", aux_hidden_states_layer_ids=[7, 0, 3]),
    _angelslim("full vocabulary", IDS, draft_vocab_size=1536),
]

ROWS = [
    *SPECULATORS_EAGLE3,
    *SPECULATORS_PEAGLE,
    *SPECULATORS_DFLASH,
    *SPECULATORS_SECOND_HEADS,
    *CONVERTED,
    *SPECFORGE_ROWS,
    *ZLAB_ROWS,
    *ANGELSLIM_ROWS,
]
