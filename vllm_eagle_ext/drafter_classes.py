# SPDX-License-Identifier: Apache-2.0
"""The drafter classes of this package, by which they are registered with vLLM.

Every process of vLLM imports this module, so that it holds data and imports nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

_EAGLE3, _DFLASH = "vllm_eagle_ext.drafters.eagle3", "vllm_eagle_ext.drafters.dflash"
_VLLM = "vllm.model_executor.models"


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
    """One drafter class, registered with vLLM by its name, and the published drafts that it serves."""

    architecture: str  # vLLM's own, or one that begins with vLLM's name for the method, then `EagleExt`
    package: str  # has the class as an attribute; vLLM hashes the whole folder of a package
    method: str  # of speculative_config
    backbone: Backbone
    published: tuple[str, ...]  # architectures in config.json
    speculators: tuple[tuple[str, str], ...] = ()  # (speculators_model_type, model_type of the layer)
    # Names that are also those of other drafts: (architecture, model_type) in config.json.
    published_with_type: tuple[tuple[str, str], ...] = ()
    leaves: tuple[str, ...] = ()  # architectures of these speculators types that go to vLLM unchecked
    is_vllms: bool = False  # vLLM's own class, on a config that the preflight has resolved
    may_lie_in_the_target: bool = False  # a draft of the method may be a part of the target's files
    # Registered too: names that vLLM looks up before the config is resolved, and does not know.
    aliases: tuple[str, ...] = ()
    can_gate: bool = False  # builds gated attention
    omits_self_attn: bool = False  # q, k and v are built without `self_attn.` in their names

    @property
    def prefix(self) -> str:
        """Return what vLLM puts before architectures of the method that do not show it."""
        return self.architecture.partition("EagleExt")[0]

    @property
    def registration(self) -> str:
        """Return the path in the form that vLLM's registry takes."""
        return f"{self.package}:{self.architecture}"


_LLAMA = Backbone(name="llama", model_type="llama", rope_theta=10_000, has_mlp_bias=True)
QWEN3 = Backbone(
    name="qwen3", model_type="qwen3", rope_theta=1_000_000, head_dim=128, kv_heads=32,
    first_sliding_layer=28, norms_heads=True,
)  # fmt: skip
_DEEPSEEK = Backbone(name="deepseek", model_type="kimi_k2", rope_theta=10_000, has_kv_heads=False)

P_EAGLE = "PEagleDraftModel"  # SpecForge's; speculators names the family by its type

LLAMA_DRAFTER = Drafter(
    architecture="Eagle3EagleExtLlamaForCausalLM",
    package=_EAGLE3,
    method="eagle3",
    backbone=_LLAMA,
    published=(
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "LlamaForCausalLM",  # older EAGLE-3 heads
        # The same class of vLLM's under other names.
        "Eagle3MiniMaxM2ForCausalLM",
        "Eagle3Qwen2_5vlForCausalLM",
        "Eagle3Qwen3vlForCausalLM",
        P_EAGLE,
    ),
    speculators=(("eagle3", "llama"), ("peagle", "llama")),
    aliases=("Eagle3PEagleDraftModel",),  # what vLLM makes of the last one
    can_gate=True,
)
QWEN3_DRAFTER = Drafter(
    architecture="Eagle3EagleExtQwen3ForCausalLM",
    package=_EAGLE3,
    method="eagle3",
    backbone=QWEN3,
    published=("Eagle3Qwen3ForCausalLM", "Qwen3ForCausalLM"),
    speculators=(("eagle3", "qwen3"), ("peagle", "qwen3")),
    can_gate=True,
    omits_self_attn=True,
)
DEEPSEEK_DRAFTER = Drafter(
    architecture="Eagle3EagleExtDeepseekV2ForCausalLM",
    package=_EAGLE3,
    method="eagle3",
    backbone=_DEEPSEEK,
    published=("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"),
)
DFLASH_DRAFTER = Drafter(
    architecture="DFlashEagleExtQwen3ForCausalLM",
    package=_DFLASH,
    method="dflash",
    backbone=QWEN3,
    published=("DFlashDraftModel",),
    speculators=(("dflash", "qwen3"), ("dflash", "llama")),  # which trains layers of Qwen3 for both
)

DFLASH2_DRAFTER = Drafter(
    architecture="DFlash2DraftModel",
    package=f"{_VLLM}.qwen3_dflash2",
    method="dflash",
    backbone=QWEN3,
    published=("DFlash2DraftModel",),
    speculators=(("dflash2", "qwen3"), ("dflash2", "llama")),
    is_vllms=True,
)
DSPARK_DRAFTER = Drafter(
    architecture="Qwen3DSparkModel",
    package=f"{_VLLM}.qwen3_dspark",
    method="dspark",
    backbone=QWEN3,
    published=("Qwen3DSparkModel",),
    speculators=(("dspark", "qwen3"), ("dspark", "llama")),
    published_with_type=(("DSparkDraftModel", "qwen3"),),  # DeepSeek-V4's drafts say so too
    leaves=("Qwen3OmniDSparkModel",),  # which vLLM checks by itself
    is_vllms=True,
    may_lie_in_the_target=True,
)

# In the order in which tables list them; `register_families` adds the classes of other families.
DRAFTERS = [
    LLAMA_DRAFTER, QWEN3_DRAFTER, DEEPSEEK_DRAFTER, DFLASH_DRAFTER, DFLASH2_DRAFTER, DSPARK_DRAFTER,
]  # fmt: skip
