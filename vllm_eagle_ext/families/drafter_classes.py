# SPDX-License-Identifier: Apache-2.0
"""What every process of vLLM knows of a drafter class; `families/*/names.py` has one record for each.

Every process of vLLM imports this module and those records, so that they hold only data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name

FOLDERS = ("eagle3", "dflash")  # in the order in which families are tried on a draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """A kind of decoder layer, with what vLLM and transformers assume where a config is silent."""

    name: str
    model_type: str  # of config.json, whose config class reads the keys of such a layer
    rope_theta: int
    head_dim: int | None = None  # None: hidden_size divided by the query heads
    kv_heads: int | None = None  # None: as many as query heads
    first_sliding_layer: int | None = None  # with use_sliding_window; None: only layer_types decide
    has_kv_heads: bool = True  # the cache keeps keys and values per head
    norms_heads: bool = False  # q_norm and k_norm
    has_mlp_bias: bool = False  # reads `mlp_bias`


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """One drafter class, ours or vLLM's own, and the published drafts that it serves."""

    architecture: str  # vLLM's own, or one that begins with vLLM's name for the method, then `EagleExt`
    package: str  # has the class as an attribute; vLLM hashes the whole folder of a package
    method: str  # of speculative_config
    backbone: Backbone
    published: tuple[str, ...]  # architectures in config.json
    speculators: tuple[tuple[str, str], ...] = ()  # (speculators_model_type, model_type of the layer)
    # Names that are also those of other drafts: (architecture, model_type) in config.json.
    published_with_type: tuple[tuple[str, str], ...] = ()
    # Of drafts of these speculators types that go to vLLM unchecked.
    excluded_architectures: tuple[str, ...] = ()
    uses_vllm_class: bool = False  # on a config that this package has resolved
    vllms_class: str = ""  # of vLLM's package, where it is not called like the architecture
    may_lie_in_the_target: bool = False  # a draft of the method may be a part of the target's files
    can_gate: bool = False  # builds gated attention
    omits_self_attn: bool = False  # q, k and v are built without `self_attn.` in their names

    @property
    def prefix(self) -> str:
        """Return what vLLM puts before architectures of the method that do not show it."""
        return {"dflash": "DFlash", "eagle3": "Eagle3"}.get(self.method, "")

    @property
    def registration(self) -> str:
        """Return the path in the form that vLLM's registry takes."""
        return f"{self.package}:{self.vllms_class or self.architecture}"

    @property
    def aliases(self) -> tuple[str, ...]:
        """Return the names that vLLM may look up before the config is resolved.

        These are the published ones, and what vLLM makes of them with its prefix.
        """
        hidden = [name for name in self.published if not name.startswith(self.prefix)]
        renamed = [self.prefix + name for name in hidden if not name.endswith(self.prefix)]
        return (*self.published, *renamed)


@cache
def drafters() -> list[Drafter]:
    """Return the records of all families' classes."""
    places = [f"vllm_eagle_ext.families.{folder}.names:DRAFTERS" for folder in FOLDERS]
    return [drafter for place in places for drafter in resolve_name(place)]


QWEN3 = Backbone(
    name="qwen3", model_type="qwen3", rope_theta=1_000_000, head_dim=128, kv_heads=32,
    first_sliding_layer=28, norms_heads=True,
)  # fmt: skip
