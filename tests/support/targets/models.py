"""One tiny random target per family, from Hugging Face's own config classes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import HEAD_DIM, HEADS, HIDDEN, INTER, KV_HEADS, LAYERS, VOCAB
from tests.support.random_targets import LATENT_SIZES

EXPERTS, EXPERTS_PER_TOKEN = 4, 2
INTERN_S2 = {
    "intern-s2-preview": "InternS2PreviewForConditionalGeneration",
    "intern-s2-mobius": "InternS2MobiusForConditionalGeneration",
}
_SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INTER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
_EXPERTS = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": EXPERTS_PER_TOKEN,
    "moe_intermediate_size": INTER,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 16,
}
# The CPU kernels of the recurrence take no smaller heads.
_DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
_VISION = {
    "depth": 1,
    "hidden_size": HIDDEN,
    "intermediate_size": INTER,
    "num_heads": HEADS,
    "out_hidden_size": HIDDEN,
    "num_position_embeddings": 64,
}
_MROPE = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "mrope_interleaved": True,
    "mrope_section": [2, 1, 1],
}


def write_target(family: str, folder: Path, dtype: torch.dtype) -> Path:
    """Seeded; every bias, norm and sink is away from its neutral value.

    In bf16 the layers add less to the residual stream, so that rounding is not multiplied from layer to
    layer: at the full scale Hugging Face's own bf16 is 0.3 away from its fp32 after eight layers.
    """
    torch.manual_seed(0)
    model = _BUILDERS[family]().to(dtype)
    scale = 0.4 if dtype == torch.bfloat16 else 1.0
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:  # at the default scale every logit is a near-tie
            deviation = _deviation(name, parameter)
            if name.endswith("mlp.gate.weight"):
                # A second expert that rounding exchanges for the third must weigh little.
                deviation /= scale**3
            is_layer = ".layers." in name
            parameter.data = torch.randn_like(parameter) * deviation * (scale if is_layer else 1.0)
        else:
            deviation = 0.03 if name.endswith("bias") else 0.2
            parameter.data += deviation * torch.randn_like(parameter)
    if family == "intern-s2-mobius":
        _share_experts(model)
    model.save_pretrained(folder)
    return folder


def as_served(family: str, folder: Path) -> Path:
    """The target's folder as vLLM is to read it: Intern-S2's models are Qwen3.5 MoE models, and Hugging
    Face's transformers has none of that name."""
    if family not in INTERN_S2:
        return folder
    served = folder.with_name(f"{folder.name}-served")
    served.mkdir()
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = [INTERN_S2[family]]
    tensors = load_file(folder / "model.safetensors")
    if family == "intern-s2-mobius":
        config["text_config"]["num_blocks"] = LAYERS // 2
        tensors = dict(_in_banks(tensors))
    (served / "config.json").write_text(json.dumps(config))
    save_file(tensors, served / "model.safetensors")
    return served


def _in_banks(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Routed experts stand beside the layers; layers i and i + LAYERS / 2 share theirs."""
    for name, tensor in tensors.items():
        routed = re.fullmatch(r"(.*)layers\.(\d+)\.mlp\.((?:gate|experts)\..*)", name)
        if routed is None:
            yield name, tensor
        elif int(routed[2]) < LAYERS // 2:
            yield f"{routed[1]}meta_mlp.{routed[2]}.{routed[3]}", tensor


def _share_experts(model: Any) -> None:
    layers = model.model.language_model.layers
    for layer, twin in zip(layers, layers[LAYERS // 2 :], strict=False):
        twin.mlp.gate.load_state_dict(layer.mlp.gate.state_dict())
        twin.mlp.experts.load_state_dict(layer.mlp.experts.state_dict())


def _deviation(name: str, parameter: torch.Tensor) -> float:
    if name.endswith("_bias"):  # larger ones make every text the same token
        return 0.03
    return 0.08 if min(parameter.shape[-2:]) > EXPERTS else 0.3  # routers and convolutions are narrow


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    return LlamaForCausalLM(LlamaConfig(**_SIZES, rope_parameters=rope))


def _qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**_SIZES))


def _qwen3_moe() -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**_SIZES, **_EXPERTS, norm_topk_prob=True))


def _gpt_oss() -> Any:
    """Windows on every other layer, sinks, biases, YaRN. vLLM's class divides KV heads among ranks, and
    replicates none; the CPU kernel takes experts of multiples of 32 per rank."""
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        **(_SIZES | {"num_key_value_heads": HEADS, "intermediate_size": 64}),
        num_local_experts=EXPERTS,
        num_experts_per_tok=EXPERTS_PER_TOKEN,
        sliding_window=16,
        rope_parameters=_YARN,
    )
    return GptOssForCausalLM(config)


def _gemma4() -> Any:
    """Windowed layers with small heads, full ones with large whose keys are their values; embeddings
    scaled by sqrt(H); the text model inside a multimodal one."""
    from transformers import (
        Gemma4Config,
        Gemma4ForConditionalGeneration,
        Gemma4TextConfig,
        Gemma4VisionConfig,
    )

    text = Gemma4TextConfig(
        **(_SIZES | {"tie_word_embeddings": True}),
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * (LAYERS // 4),
        sliding_window=16,
        global_head_dim=2 * HEAD_DIM,
        attention_k_eq_v=True,
        num_global_key_value_heads=KV_HEADS,
        hidden_size_per_layer_input=0,
        final_logit_softcapping=30.0,
    )
    vision = Gemma4VisionConfig(
        hidden_size=HIDDEN,
        intermediate_size=INTER,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HEAD_DIM,
        position_embedding_size=64,
    )
    return Gemma4ForConditionalGeneration(Gemma4Config(text_config=text, vision_config=vision))


def _deepseek() -> Any:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    sizes = {key: value for key, value in _SIZES.items() if key != "head_dim"}
    config = DeepseekV3Config(
        **(sizes | {"num_key_value_heads": HEADS}),
        **LATENT_SIZES,
        moe_intermediate_size=INTER,
        first_k_dense_replace=1,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=EXPERTS_PER_TOKEN,
        n_group=1,
        topk_group=1,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
    )
    return DeepseekV3ForCausalLM(config)


def _qwen3_next() -> Any:
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    config = Qwen3NextConfig(**_SIZES, **_EXPERTS, **_DELTA_NET, shared_expert_intermediate_size=INTER)
    return Qwen3NextForCausalLM(config)


def _qwen3_5_text() -> Any:
    from transformers import Qwen3_5TextConfig

    return Qwen3_5TextConfig(**_SIZES, **_DELTA_NET, rope_parameters=_MROPE)


def _qwen3_5() -> Any:
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration, Qwen3_5VisionConfig

    vision = Qwen3_5VisionConfig(**_VISION)
    config = Qwen3_5Config(text_config=_qwen3_5_text(), vision_config=vision)
    return Qwen3_5ForConditionalGeneration(config)


def _qwen3_5_moe() -> Any:
    from transformers import (
        Qwen3_5MoeConfig,
        Qwen3_5MoeForConditionalGeneration,
        Qwen3_5MoeTextConfig,
        Qwen3_5MoeVisionConfig,
    )

    text = Qwen3_5MoeTextConfig(
        **{key: value for key, value in _SIZES.items() if key != "intermediate_size"},
        **_EXPERTS,
        **_DELTA_NET,
        rope_parameters=_MROPE,
        shared_expert_intermediate_size=INTER,
    )
    vision = Qwen3_5MoeVisionConfig(**_VISION)
    config = Qwen3_5MoeConfig(text_config=text, vision_config=vision)
    return Qwen3_5MoeForConditionalGeneration(config)


def _minicpm_v(version: str) -> Any:
    """The text model is Qwen3.5's."""
    import transformers

    sizes = {"hidden_size": HIDDEN, "intermediate_size": INTER, "num_attention_heads": HEADS}
    config = getattr(transformers, f"MiniCPMV{version}Config")(
        text_config=_qwen3_5_text(), vision_config=sizes | {"num_hidden_layers": 1}, insert_layer_id=0
    )
    return getattr(transformers, f"MiniCPMV{version}ForConditionalGeneration")(config)


_BUILDERS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3-moe": _qwen3_moe,
    "gpt-oss": _gpt_oss,
    "gemma4": _gemma4,
    "deepseek": _deepseek,
    "qwen3-next": _qwen3_next,
    "qwen3.5": _qwen3_5,
    "qwen3.5-moe": _qwen3_5_moe,
    **dict.fromkeys(INTERN_S2, _qwen3_5_moe),
    **{f"minicpm-v-4.{minor}": partial(_minicpm_v, f"4_{minor}") for minor in (6, 7)},
}
