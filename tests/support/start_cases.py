"""Starts to compare with `vllm-eagle check`: a draft, a target and what a user asks for, one thing of
them unusual at a time. `start_cases` writes the files; nothing here says what the answer should be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import published
from tests.support.checkpoints import (
    HIDDEN,
    LAYERS,
    VOCAB,
    draft_config,
    draft_tensors,
    tiny_draft,
    write_draft,
    write_target,
)
from tests.support.draft_families import Draft, matrix
from tests.support.drafts import valid_draft, write
from tests.support.engine import TINY
from tests.support.start_tables import CONFIG, DENSE, HYBRID, PUBLISHED, SCHEDULE, SPECULATIVE, Keys
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS


@dataclass(frozen=True, kw_only=True)
class StartCase:
    name: str
    draft: Path
    target: Path
    method: str = "eagle3"  # that a start names; a check finds it by the files
    k: int = 3
    options: Keys = field(default_factory=dict)
    speculative: Keys = field(default_factory=dict)  # further keys
    engine: Keys = field(default_factory=dict)  # keywords of EngineArgs

    def checked(self, platform: str) -> Keys:
        """Keywords of CheckRequest."""
        return {
            "draft": str(self.draft), "target": str(self.target), "k": self.k, "platform": platform,
            "options": self.options, "speculative": self.speculative, "engine": self.engine,
        }  # fmt: skip

    def started(self) -> Keys:
        """Keywords of EngineArgs on a CPU, where V1 does not cache prefixes of hybrid targets."""
        asked = {"method": self.method, "model": str(self.draft), "num_speculative_tokens": self.k}
        keys: Keys = {
            "model": str(self.target), "skip_tokenizer_init": True,
            "speculative_config": asked | self.speculative,
        }  # fmt: skip
        (architecture,) = json.loads((self.target / "config.json").read_text())["architectures"]
        if architecture in REPLAYING_TARGETS:
            keys["enable_prefix_caching"] = False
        if self.options:
            keys["additional_config"] = {"eagle_ext": self.options}
        return keys | self.engine


def start_cases(folder: Path) -> list[StartCase]:
    """Write every case's files into `folder`."""
    target, draft = write_target(folder / "target"), tiny_draft(folder / "draft")
    plain: Keys = {"draft": draft, "target": target}
    hybrid: Keys = {
        "draft": TINY / "dflash", "target": TINY / "hybrid_target", "method": "dflash", "k": 7
    }  # fmt: skip
    cases = [StartCase(name=f"dense, {name}", **plain | asked) for name, asked in DENSE.items()]
    cases += [StartCase(name=f"hybrid, {name}", **hybrid | asked) for name, asked in HYBRID.items()]
    cases += [
        StartCase(name=f"key, {name}", **plain, speculative=keys) for name, keys in SPECULATIVE.items()
    ]
    for name, keys in CONFIG.items():
        changed = write(_changed(keys), folder / "config" / re.sub(r"\W+", "_", name))
        cases.append(StartCase(name=f"config, {name}", draft=changed, target=target))
    for name, spoil in FILES.items():
        bad = _post_norm()
        spoil(bad)
        changed = write(bad, folder / spoil.__name__.strip("_"))
        cases.append(StartCase(name=f"files, {name}", draft=changed, target=target))
    return [*cases, *_targets(folder, draft), *_families(folder, target), *_published(folder)]


def _post_norm() -> Draft:
    tensors = draft_tensors(num_aux=3, post_norm=True)
    return Draft(draft_config(num_aux=3, post_norm=True), tensors, "eagle3", 3)


def _changed(keys: Keys) -> Draft:
    draft = _post_norm()
    draft.config |= keys
    return draft


def _no_eps(draft: Draft) -> None:
    del draft.config["rms_norm_eps"]


def _no_norms(draft: Draft) -> None:
    draft.tensors = {name: held for name, held in draft.tensors.items() if "fc_norm" not in name}


def _no_up_projection(draft: Draft) -> None:
    del draft.tensors["midlayer.mlp.up_proj.weight"]


def _map_with_one_step(draft: Draft) -> None:
    draft.tensors["d2t"].fill_(5)


def _depth_of_the_target(draft: Draft) -> None:
    """NeMo copies the target's config, and names the one layer `layers.0`."""
    _no_norms(draft)
    draft.config |= {"num_hidden_layers": LAYERS, "fc_norm": False, "norm_output": False}
    draft.tensors = {k.replace("midlayer", "layers.0"): held for k, held in draft.tensors.items()}


def _keys_of_gemma(draft: Draft) -> None:
    _depth_of_the_target(draft)
    draft.config |= {
        "num_hidden_layers": 1, "model_type": "gemma4_text", "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "layer_types": ["sliding_attention"] * LAYERS,
        "sliding_window": 64, "final_logit_softcapping": 30.0, "rope_scaling": None,
    }  # fmt: skip


def _biases_by_another_key(draft: Draft) -> None:
    draft.config["qkv_bias"] = True
    for name in "qkv":
        rows = draft.tensors[f"midlayer.self_attn.{name}_proj.weight"].shape[0]
        draft.tensors[f"midlayer.self_attn.{name}_proj.bias"] = matrix(1, rows)[0]


FILES: dict[str, Callable[[Draft], None]] = {
    "no rms_norm_eps": _no_eps,
    "no norms": _no_norms,
    "no up projection": _no_up_projection,
    "d2t of fives": _map_with_one_step,
    "depth of the target": _depth_of_the_target,
    "keys of Gemma": _keys_of_gemma,
    "biases by another key": _biases_by_another_key,
}


def _targets(folder: Path, draft: Path) -> Iterator[StartCase]:
    """The usual draft beside unusual targets."""
    latent = {
        "kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
        "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "moe_intermediate_size": 32, "first_k_dense_replace": 1,
    }  # fmt: skip
    stable = write_target(folder / "stable", architectures=["StableLmForCausalLM"])
    deep = write_target(
        folder / "deep", architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", **latent
    )
    wide = write_target(folder / "wide", hidden_size=2 * HIDDEN)
    yield StartCase(name="target, no states", draft=draft, target=stable)
    by_transformers = {"model_impl": "transformers"}
    yield StartCase(name="target, no states in vLLM", draft=draft, target=stable, engine=by_transformers)
    inputs = {"aux_layers": [0, LAYERS // 2 - 1, LAYERS // 2]}
    yield StartCase(name="target, embeddings of DeepSeek", draft=draft, target=deep, options=inputs)
    yield StartCase(name="target, another width", draft=draft, target=wide)
    yield StartCase(name="target, Omni thinker", draft=draft, target=_thinker(folder / "thinker"))


def _thinker(folder: Path) -> Path:
    """A target whose language model lies two blocks deep."""
    config = write_target(folder) / "config.json"
    text = json.loads(config.read_text())
    del text["architectures"]
    text |= {
        "model_type": "qwen3_omni_moe_text", "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": [],
    }  # fmt: skip
    thinker = {"model_type": "qwen3_omni_moe_thinker", "text_config": text, "image_token_id": 100}
    config.write_text(
        json.dumps(
            {
                "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
                "model_type": "qwen3_omni_moe",
                "thinker_config": thinker,
            }
        )
    )
    return folder


def _families(folder: Path, target: Path) -> Iterator[StartCase]:
    """Other drafts beside the dense target, or beside one that they ask more of."""
    native = tiny_draft(folder / "native", post_norm=False)
    yield StartCase(name="native, as usual", draft=native, target=target)
    one_head = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64}
    tensors = draft_tensors(num_aux=3, post_norm=True)
    for name, rows in (("q", 64), ("k", 64), ("v", 64)):
        tensors[f"midlayer.self_attn.{name}_proj.weight"] = matrix(rows, 2 * HIDDEN)
    config = draft_config(num_aux=3, post_norm=True) | one_head
    yield StartCase(
        name="native, one head on two ranks", draft=write_draft(folder / "one", config, tensors),
        target=target, engine={"tensor_parallel_size": 2}, speculative={"draft_tensor_parallel_size": 1},
    )  # fmt: skip
    kinds = ["sliding_attention", *["full_attention"] * (LAYERS - 1)]
    mixed = write_target(folder / "mixed", layer_types=kinds, sliding_window=64)
    dflash: Keys = {"draft": write(valid_draft("dflash"), folder / "dflash"), "method": "dflash"}
    yield StartCase(name="dflash, layers that V1 parts", **dflash, target=mixed)
    padded = write_target(folder / "padded", vocab_size=VOCAB + 32)
    yield StartCase(name="dflash, padded vocabulary", **dflash, target=padded)
    renamed = valid_draft("dflash")
    renamed.config["architectures"] = ["Qwen3DFlashDraftModel"]
    renamed_to = write(renamed, folder / "renamed")
    yield StartCase(name="dflash, name of NeMo", draft=renamed_to, target=target, method="dflash")
    parallel: Keys = {
        "draft": write(valid_draft("p-eagle"), folder / "parallel"), "target": target, "k": 4
    }  # fmt: skip
    flag = {"parallel_drafting": True}
    yield StartCase(name="p-eagle, as usual", **parallel, speculative=flag)
    steps = {SCHEDULE: [[1, 8, 4], [9, 32, 2]]}
    yield StartCase(name="p-eagle, schedule", **parallel, speculative=flag | steps)


def _published(folder: Path) -> Iterator[StartCase]:
    for draft in published.published():
        if draft.slug in PUBLISHED:
            there = folder / "published" / draft.slug
            yield StartCase(
                name=f"published, {draft.slug}",
                draft=published.materialise(draft, there / "draft"),
                target=published.write_target(draft, there / "target"),
                method=draft.method,
                k=draft.k,
                engine={"max_model_len": 4096},
                speculative={"parallel_drafting": True} if "p_eagle" in draft.slug else {},
            )
