"""The table of target families: which tiny target, which drafts, in which engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.checkpoints import LAYERS, VOCAB
from tests.support.random_targets import LATENT_ENGINE

AUX_LAYERS = (0, 2, LAYERS // 2, LAYERS - 3, LAYERS)
LLAMA = "Eagle3EagleExtLlamaForCausalLM"
QWEN3 = "Eagle3EagleExtQwen3ForCausalLM"
MLA = "Eagle3EagleExtDeepseekV2ForCausalLM"
DFLASH = "DFlashEagleExtQwen3ForCausalLM"
# The recurrence in fp32, but for its inputs and outputs: the CPU kernels take bf16 alone.
DELTA_NET_ENGINE = {"mamba_ssm_cache_dtype": "float32"}
# Of a multimodal target: no processor lies beside the weights.
TEXT_ONLY = {"language_model_only": True}
# V1 knows the token of such a target by this name alone (vLLM 0.32, 0.33), and a text has none.
IMAGE_TOKEN = {"hf_overrides": {"image_token_index": VOCAB - 1}}
# Without the CPU kernel for rotary embeddings, which misreads queries of three dimensions (vLLM 0.32).
NATIVE_ROPE = {"custom_ops": ["-rotary_embedding"]}


@dataclass(frozen=True)
class Pair:
    kind: str  # of tests.support.targets.drafts
    drafter: str
    title: str
    k: int = 3
    layer_ids: tuple[int, ...] = AUX_LAYERS
    speculative: dict[str, Any] = field(default_factory=dict)
    on_v1: dict[str, Any] = field(default_factory=dict)  # engine arguments

    @property
    def name(self) -> str:
        return self.title.replace(" ", "_").replace(",", "")


@dataclass(frozen=True)
class Family:
    name: str
    title: str
    target: str  # vLLM's class
    pairs: tuple[Pair, ...]
    dtype: str = "float32"
    engine_args: dict[str, Any] = field(default_factory=dict)
    parallel: bool = False  # served by two ranks as well
    v2: bool = False  # and on the V2 runner, which is slow under Triton's interpreter

    @property
    def engine(self) -> dict[str, Any]:
        return {"dtype": self.dtype, **self.engine_args}

    @property
    def clear(self) -> float:
        """How far ahead a token must be for rounding not to turn it, in log-probability."""
        return 1e-3 if self.dtype == "float32" else 0.03

    @property
    def bound(self) -> float:
        """The states' largest error. fp32 differs by the order of sums alone (1e-5 was seen); bf16
        rounds at every layer (0.012), and Hugging Face's own bf16 as much."""
        return 1e-4 if self.dtype == "float32" else 0.03


_LATENT = {"attention_backend": LATENT_ENGINE["attention_backend"]}
_AFTER_LAYER_0 = (1, *AUX_LAYERS[1:])  # vLLM's layers fail at aux layer 0; the preflight refuses it
_ONE_GROUP = {"disable_hybrid_kv_cache_manager": True}  # else V1 would scatter the draft's cache
_FAMILIES = (
    Family("llama", "Llama 3.x", "LlamaForCausalLM", (Pair("post-norm", LLAMA, "post-norm"),)),
    Family(
        "qwen3",
        "Qwen3",
        "Qwen3ForCausalLM",
        (
            Pair("qwen3", QWEN3, "native, Qwen3 type"),
            Pair("dflash:zlab_qwen3_8b", DFLASH, "DFlash, block 16", k=15),
        ),
        v2=True,
    ),
    Family("qwen3-moe", "Qwen3-MoE", "Qwen3MoeForCausalLM", (Pair("gated", LLAMA, "gated"),)),
    Family(
        "gpt-oss",
        "gpt-oss",
        "GptOssForCausalLM",
        (
            Pair("post-norm", LLAMA, "post-norm"),
            Pair(
                "dflash:zlab_gpt_oss_20b",
                DFLASH,
                "DFlash, block 8, biases, sinks, YaRN",
                k=7,
                on_v1=_ONE_GROUP,
            ),
        ),
        parallel=True,
    ),
    Family(
        "gemma4",
        "Gemma 4",
        "Gemma4ForConditionalGeneration",
        (Pair("speculators", LLAMA, "native, speculators format"),),
        engine_args=TEXT_ONLY,
        parallel=True,
    ),
    Family(
        "deepseek",
        "DeepSeek-V3, Kimi-K2",
        "DeepseekV3ForCausalLM",
        (Pair("mla", MLA, "MLA", layer_ids=_AFTER_LAYER_0, speculative=_LATENT),),
        engine_args=LATENT_ENGINE | {"compilation_config": NATIVE_ROPE},
        parallel=True,
    ),
    Family(
        "qwen3-next",
        "Qwen3-Next",
        "Qwen3NextForCausalLM",
        (Pair("native", LLAMA, "native"),),
        "bfloat16",
        DELTA_NET_ENGINE,
    ),
    Family(
        "qwen3.5",
        "Qwen3.5, Qwen3.6, Qwen3.8-27B",
        "Qwen3_5ForConditionalGeneration",
        (
            Pair("post-norm", LLAMA, "post-norm"),
            Pair("dflash:zlab_qwen3_5_27b", DFLASH, "DFlash, block 16", k=15),
        ),
        "bfloat16",
        DELTA_NET_ENGINE | TEXT_ONLY,
    ),
    Family(
        "qwen3.5-moe",
        "Qwen3.5 MoE, Qwen3.6 MoE",
        "Qwen3_5MoeForConditionalGeneration",
        (Pair("post-norm", LLAMA, "post-norm"),),
        "bfloat16",
        DELTA_NET_ENGINE | TEXT_ONLY,
    ),
    Family(
        "intern-s2-preview",
        "Intern-S2-Preview",
        "InternS2PreviewForConditionalGeneration",
        (Pair("post-norm", LLAMA, "post-norm"),),
        "bfloat16",
        DELTA_NET_ENGINE | TEXT_ONLY,
    ),
    Family(
        "intern-s2-mobius",
        "Intern-S2-Mobius",
        "InternS2MobiusForConditionalGeneration",
        (Pair("post-norm", LLAMA, "post-norm"),),
        "bfloat16",
        DELTA_NET_ENGINE | TEXT_ONLY,
    ),
    *(
        Family(
            f"minicpm-v-4.{minor}",
            f"MiniCPM-V 4.{minor}",
            f"MiniCPMV4_{minor}ForConditionalGeneration",
            (Pair("post-norm", LLAMA, "post-norm"),),
            "bfloat16",
            DELTA_NET_ENGINE | TEXT_ONLY | IMAGE_TOKEN,
        )
        for minor in (6, 7)
    ),
)
FAMILIES = {family.name: family for family in _FAMILIES}
