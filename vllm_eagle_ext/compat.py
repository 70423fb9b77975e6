# SPDX-License-Identifier: Apache-2.0
"""The only module that knows vLLM versions and the only one that replaces a name of vLLM's."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from vllm_eagle_ext.log import get_logger, log_once

logger = get_logger(__name__)

# 0.32 by running it, 0.33 by reading its source (tests/contract).
TESTED_VLLM = ">=0.32,<0.34"
_INTAKE_MODULE = "vllm.engine.arg_utils"
_RUNNER_MODULE = "vllm.v1.worker.gpu_model_runner"
_REJECTION_MODULE = "vllm.v1.sample.rejection_sampler"
_METHODS_ON_V1 = ("suffix", "custom_class", "medusa", "mlp_speculator")
_WRAPPED = "_eagle_ext_wraps"


def vllm_version() -> str:
    """The version of vLLM itself: its CPU build is distributed under another name."""
    from vllm.version import __version__

    return str(__version__)


def is_tested(version: str) -> bool:
    try:
        return SpecifierSet(TESTED_VLLM).contains(Version(version), prereleases=True)
    except InvalidVersion:  # a development build such as "dev"
        return False


def v2_runner_needs_aux_states() -> bool:
    """0.32's V2 runner asks the target for aux states whatever the draft's config says."""
    try:
        return Version(vllm_version()) < Version("0.33")
    except InvalidVersion:
        return False


def model_runner(
    *, drafts_in_parallel: bool, method: str | None = None, other_vocabulary: bool = False
) -> Literal["v1", "v2"]:
    """Which runner vLLM will choose for a draft, by its own order of reasons.

    Args:
        drafts_in_parallel: `parallel_drafting` is asked for, which only V1 has outside DFlash.
        method: of the speculative config; some exist on V1 alone.
        other_vocabulary: the draft has a vocabulary of its own, which only V1 can map.
    """
    from vllm import envs
    from vllm.triton_utils import HAS_TRITON

    if envs.VLLM_USE_V2_MODEL_RUNNER is not None:
        return "v2" if envs.VLLM_USE_V2_MODEL_RUNNER else "v1"
    on_v1 = drafts_in_parallel or other_vocabulary or method in _METHODS_ON_V1
    return "v2" if HAS_TRITON and not on_v1 else "v1"


def registered_architectures() -> frozenset[str]:
    from vllm.model_executor.models.registry import ModelRegistry

    return frozenset(ModelRegistry.get_supported_archs())


def readable_model_types() -> frozenset[str]:
    """Model types whose config.json vLLM or its transformers can read."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    return frozenset(CONFIG_MAPPING.keys()) | frozenset(_CONFIG_REGISTRY.keys())


def warn_outside_tested_range() -> None:
    """One warning per start: vLLM's child processes register too, but stay silent."""
    version = vllm_version()
    if is_tested(version) or multiprocessing.parent_process() is not None:
        return
    log_once(
        logger,
        logging.WARNING,
        f"vllm-eagle-ext is tested with vLLM {TESTED_VLLM}; this is {version}. It changes nothing, "
        "and refuses drafts that vLLM alone would serve wrongly. To use it all the same: "
        '--additional-config \'{"eagle_ext": {"untested_vllm": true}}\'',
    )


def install_intake() -> None:
    """Let the intake see each draft between the command line and vLLM's SpeculativeConfig.

    Symptom: a five-layer draft with nested ids crashes the V2 runner, a three-layer one reads the
        wrong layers on both runners without a word.
    Cause: three resolvers of `eagle_aux_hidden_state_layer_ids` in vLLM that disagree (V1 runner, V2
        runner, drafter classes); none sees the target's depth or the plugin's options.
    Seam: `EngineArgs.create_speculative_config(self, target_model_config, target_parallel_config)`
        is wrapped; the original is always the one that builds the SpeculativeConfig.
    REMOVE WHEN: vLLM offers a hook on the draft's config that sees target config and
        `additional_config` (vllm#36219 asks for a registry of proposers).
    """
    when_loaded(_INTAKE_MODULE, _wrap_create_speculative_config)


def _wrap_create_speculative_config(module: ModuleType) -> None:
    def around(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm_eagle_ext import intake

        build = functools.partial(original, self, *args, **kwargs)
        target = kwargs.get("target_model_config", args[0] if args else None)
        if is_tested(vllm_version()):
            return intake.build_speculative_config(self, target, build)
        return intake.build_on_untested_vllm(self, target, build)

    _wrap(module.EngineArgs, "create_speculative_config", around)


def _wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    """`owner.name` runs `around(the original, self, ..)` from now on; idempotent."""
    original = getattr(owner, name)
    if hasattr(original, _WRAPPED):
        return

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, self, *args, **kwargs)

    setattr(wrapped, _WRAPPED, original)
    setattr(owner, name, wrapped)


def install_commit_on_v1() -> None:
    """Commit accepted rows on the V1 runner. Called by a target that replays, when it is built.

    Symptom: the V1 runner never tells a state kept by replay how many rows were accepted.
    Cause: vLLM's commit hooks (RecoverSSM) exist on its V2 runner alone.
    Seam: `GPUModelRunner._update_states_after_model_execute(self, output_token_ids, ..)`, which V1 runs
        right after sampling on hybrid targets, is wrapped; the original runs first and unchanged.
    REMOVE WHEN: vLLM's V1 runner goes.
    """
    when_loaded(_RUNNER_MODULE, _wrap_update_states)


def _wrap_update_states(module: ModuleType) -> None:
    def around(original: Any, self: Any, output_token_ids: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm_eagle_ext.hybrid.state import commit_on_v1

        result = original(self, output_token_ids, *args, **kwargs)
        commit_on_v1(self, output_token_ids)
        return result

    _wrap(module.GPUModelRunner, "_update_states_after_model_execute", around)


def install_sampling_on_cpu() -> None:
    """Verify drafts of sampled requests at their own temperature, top-k and top-p on a CPU's V1 runner.
    Called by a drafter, and by a target that replays, when it is built.

    Symptom: sampled texts follow another distribution than the target's, from any draft; a seed does not
        repeat them; greedy requests beside sampled ones may change, too.
    Cause: vLLM 0.32's CPU stand-in for `expand_kernel` (utils/cpu_triton_utils.py) fills an int64 copy
        of its float output: the verified rows get whatever the memory held.
    Seam: `expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from, replace_to)` of the V1
        rejection sampler; tensors of other devices go to the original.
    REMOVE WHEN: `_expand_kernel_impl` fills the tensor that it is given.
    """
    when_loaded(_REJECTION_MODULE, _wrap_expand)


def _wrap_expand(module: ModuleType) -> None:
    original = module.expand_batch_to_tokens
    if hasattr(original, _WRAPPED):
        return

    @functools.wraps(original)
    def expand_batch_to_tokens(
        x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> Any:
        if not x.is_cpu:
            return original(x, cu_num_tokens, num_tokens, replace_from, replace_to)
        counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
        replaced = x.masked_fill(x == replace_from, replace_to)
        return replaced.repeat_interleave(counts, output_size=num_tokens)

    setattr(expand_batch_to_tokens, _WRAPPED, original)
    module.expand_batch_to_tokens = expand_batch_to_tokens


def use_architecture(model_config: Any, architecture: str) -> None:
    """Give a ModelConfig another registered architecture of the same capabilities, as
    `SpeculativeConfig.update_arch_` does for drafts. vLLM's own update of the engine's config, found
    by architecture, stays the one of the old name."""
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    update = MODELS_CONFIG_MAP.get(model_config.architecture)
    if update is not None:
        MODELS_CONFIG_MAP[architecture] = update
    model_config.hf_config.architectures = [architecture]
    model_config.model_arch_config = model_config.get_model_arch_config()
    model_config._architecture = architecture


def when_loaded(name: str, action: Callable[[ModuleType], None]) -> None:
    """Run `action` on a module now if it is loaded, else right after its first import."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
    elif not any(isinstance(f, _AfterImport) and f.name == name for f in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(name, action))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds one module through the other finders and runs an action once it has executed.

    Stays in place until then: a module may be looked up without being imported, or fail at first.
    """

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.action = action
        self.searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            self._act_after(spec.loader)
        return spec

    def _act_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            try:
                self.action(module)
            except Exception:  # noqa: BLE001 - the import of vLLM's own module must not fail for us
                logger.exception(
                    "vllm-eagle-ext could not hook into %s; vLLM runs without it.", self.name
                )

        loader.exec_module = exec_module
