"""Published hybrid targets as vLLM builds them, without weights, with the blocks of a GPU."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn
from vllm.model_executor.model_loader.utils import get_model_architecture
from vllm.platforms import current_platform
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.kv_cache_layout import KVCacheLayout

from tests.unit.memory.configs import config
from vllm_eagle_ext import plugin
from vllm_eagle_ext.replay import built_caches, layer, targets
from vllm_eagle_ext.replay.ops import cpu

NAMES = {"27B": "qwen3_6_27b", "4B": "qwen3_5_4b"}
_CONFIGS = {}  # by scheme and target


@dataclass(frozen=True)
class Case:
    target: str = "27B"
    k: int = 15
    length: int = 32768
    prefix_caching: bool = True
    prefill: str = "triton"  # backend of the gated delta nets
    attention: int = 16  # tokens of the attention backend's smallest block
    block_size: int | None = None  # as a user sets it


class _SizesAsAGpu(type(current_platform)):
    """A CPU's platform, which starts from larger blocks of its own in 0.33, but for that."""

    update_block_size_for_backend = Platform.update_block_size_for_backend  # what CUDA's inherits


class Builder:
    """Builds the language model of a published target; on a CPU what follows from a GPU is replaced."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.patch = folder, monkeypatch
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
        plugin.register()
        # The C++ operators of a CPU need a state block to discard.
        monkeypatch.setattr(layer, "replay_ops", lambda: SimpleNamespace(scratch_blocks=0))
        monkeypatch.setattr(built_caches, "current_platform", _SizesAsAGpu())
        # Whether kernels are right is no question of memory.
        monkeypatch.setattr(targets, "resolve_kernels", lambda *_, **__: cpu)

    def __call__(self, scheme, case):
        """The engine's config, with the layers of the built model in it."""
        built = self._configure(scheme, case)
        cache = built.cache_config
        cache.mamba_cache_mode = "align" if case.prefix_caching else "none"
        cache.mamba_block_size = None if case.prefix_caching else case.length
        cache.mamba_page_size_padded, cache.kv_cache_layout = None, KVCacheLayout.LBNHC.name
        asked = lambda _: ("auto", case.prefill)  # noqa: E731
        self.patch.setattr(qwen_gdn_linear_attn, "_resolve_gdn_prefill_backend", asked)
        sizes = classmethod(lambda *_: [MultipleOf(case.attention)])
        self.patch.setattr(CPUAttentionBackend, "get_supported_kernel_block_sizes", sizes)
        with set_current_vllm_config(built), torch.device("meta"):
            get_model_architecture(built.model_config)[0](vllm_config=built)
        cache.user_specified_block_size = case.block_size is not None
        cache.block_size = case.block_size or cache.block_size
        Platform.update_block_size_for_backend.__func__(Platform, built)
        built.device_config = SimpleNamespace(device_type="cuda")
        return built

    def _configure(self, scheme, case):
        """A new config takes seconds: it is made once for each scheme and target."""
        if (scheme, case.target) not in _CONFIGS:
            _CONFIGS[scheme, case.target] = self._new_config(scheme, case.target)
        made = copy.deepcopy(_CONFIGS[scheme, case.target])
        made.speculative_config.num_speculative_tokens = case.k
        made.model_config.max_model_len = case.length
        return made

    def _new_config(self, scheme, target):
        text = dict(config(NAMES[target])["text_config"])
        text["architectures"] = ["Qwen3_5ForCausalLM"]
        (self.folder / "config.json").write_text(json.dumps(text))
        draft = {"method": "ngram", "num_speculative_tokens": 15, "prompt_lookup_max": 3}
        arguments = EngineArgs(
            model=str(self.folder),
            skip_tokenizer_init=True,
            max_model_len=32768,
            enable_prefix_caching=False,  # a CPU's V1 runner has none; set when a model is built
            speculative_config=draft,
            additional_config={"eagle_ext": {"hybrid_state": scheme}},
        )
        return arguments.create_engine_config()


@dataclass(frozen=True)
class Counted:
    """vLLM's own numbers."""

    state_blocks: int
    tokens: int  # of an attention block
    state: int  # bytes per request
    concurrency: float
    pool: int  # blocks


def count(built, budget) -> Counted:
    specs = built_caches.built_specs(built)
    states = [spec for spec in specs.values() if isinstance(spec, MambaSpec)]
    planning = built_caches.planning
    groups = planning.get_kv_cache_groups(built, dict(specs))
    caches = planning.get_kv_cache_config_from_groups(built, groups, budget)
    return Counted(
        state_blocks=states[0].max_memory_usage_bytes(built) // states[0].page_size_bytes,
        tokens=built.cache_config.block_size,
        state=sum(spec.max_memory_usage_bytes(built) for spec in states),
        concurrency=get_max_concurrency_for_kv_cache_config(built, caches),
        pool=caches.num_blocks,
    )
