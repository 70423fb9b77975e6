# SPDX-License-Identifier: Apache-2.0
"""The only module that replaces names of vLLM's (and transformers') in a start; each docstring says why,
and until when.

`plugin` lists what the package adds or sets besides.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from vllm_eagle_ext.log import get_logger, log_once
from vllm_eagle_ext.version import TESTED_VLLM, is_tested

logger = get_logger(__name__)

_ENGINE_ARGS = "vllm.engine.arg_utils"
_RUNNER = "vllm.v1.worker.gpu_model_runner"
_REJECTION_SAMPLER = "vllm.v1.sample.rejection_sampler"
_WRAPPED = "_eagle_ext_wraps"

# EngineArgs, the target's ModelConfig and ParallelConfig, vLLM's own builder -> what that returned.
BuildSpeculativeConfig = Callable[[Any, Any, Any, Callable[[], Any]], Any]
JudgeEngine = Callable[[Any, Any], None]  # EngineArgs, VllmConfig
CommitOnV1 = Callable[[Any, Any], None]  # the V1 runner, sampled token ids [requests, K + 1]


def vllm_version() -> str:
    """Return the version of vLLM itself: its CPU build is distributed under another name."""
    from vllm.version import __version__

    return str(__version__)


def warn_outside_tested_range() -> None:
    """Warn once per start: vLLM's child processes register too, but stay silent."""
    version = vllm_version()
    if is_tested(version) or multiprocessing.parent_process() is not None:
        return
    log_once(
        logger,
        logging.WARNING,
        f"vllm-eagle-ext is tested with vLLM {TESTED_VLLM}; this is {version}. It changes nothing, "
        "and refuses drafts that vLLM without it would serve wrongly. To use it all the same: "
        '--additional-config \'{"eagle_ext": {"untested_vllm": true}}\'',
    )


def install_in_front_end(build: BuildSpeculativeConfig, judge: JudgeEngine) -> None:
    """Let `build` see each draft between the command line and vLLM's SpeculativeConfig, and `judge` the
    VllmConfig that follows.

    Symptom: a five-layer draft with nested ids crashes the V2 runner, a three-layer one reads the
        wrong layers on both runners without a word.
    Cause: three resolvers of `eagle_aux_hidden_state_layer_ids` in vLLM that disagree (V1 runner, V2
        runner, drafter classes); none sees the target's depth or the plugin's options.
    Seam: `EngineArgs.create_speculative_config(self, target_model_config, target_parallel_config)`
        is wrapped; the original is always the one that builds the SpeculativeConfig. So is
        `EngineArgs.create_engine_config(self, ..)`, whose result is read and returned as it is.
        REMOVE WHEN vLLM offers a hook on the draft's config that sees the target's and
        `additional_config` (vllm#36219 asks for a registry of proposers), and one on its VllmConfig.
    """
    when_loaded(_ENGINE_ARGS, _wrap_engine_args, build, judge)


def _wrap_engine_args(module: ModuleType, build: BuildSpeculativeConfig, judge: JudgeEngine) -> None:
    def building(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(("target_model_config", "target_parallel_config"), args, strict=False)) | kwargs
        configs = (given.get("target_model_config"), given.get("target_parallel_config"))
        return build(self, *configs, functools.partial(original, self, *args, **kwargs))

    def judging(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        config = original(self, *args, **kwargs)
        judge(self, config)
        return config

    _wrap(module.EngineArgs, "create_speculative_config", building)
    _wrap(module.EngineArgs, "create_engine_config", judging)


@contextmanager
def reading_configs(change: Callable[..., Any], build: Callable[..., Any]) -> Iterator[None]:
    """Let `change` see each config.json that transformers reads meanwhile, and `build` make its config
    from the class, the file and how the class builds of a dict.

    Symptom: `"attention_bias": null` ends a start in transformers, which without the key goes on.
    Cause: the config classes of transformers 5 enforce their types, and vLLM builds them from the file.
    Seam: `PreTrainedConfig.get_config_dict(name, ..)`, which all of vLLM's and transformers' readers
        call, and `from_dict(config, ..)`, by which they build, are wrapped until the draft's config is
        built. REMOVE WHEN transformers takes null for a key that may be missing.
    """
    from transformers import PreTrainedConfig

    readers: Any = PreTrainedConfig
    read, make = readers.__dict__["get_config_dict"], readers.__dict__["from_dict"]

    def changed(cls: type, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        config, rest = read.__func__(cls, *args, **kwargs)
        return dict(change(config)), rest

    def built(cls: type, config: Mapping[str, Any], **kwargs: Any) -> Any:
        return build(cls, config, lambda kept: make.__func__(cls, kept, **kwargs))

    readers.get_config_dict, readers.from_dict = classmethod(changed), classmethod(built)
    try:
        yield
    finally:
        readers.get_config_dict, readers.from_dict = read, make


def _wrap(owner: type | ModuleType, name: str, around: Callable[..., Any]) -> None:
    """Make `owner.name` run `around(the original, self, ..)` from now on; wrap it only once."""
    original = getattr(owner, name)
    if hasattr(original, _WRAPPED):
        return

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, self, *args, **kwargs)

    setattr(wrapped, _WRAPPED, original)
    setattr(owner, name, wrapped)


def install_in_worker(commit_on_v1: CommitOnV1 | None = None) -> None:
    """Install what a worker needs with a model of this package; each of them calls it when it is built.

    No earlier moment would do: `register` runs in every worker, but knows no config, and vLLM must stay
    as it is for users without a supported draft.

    Args:
        commit_on_v1: given by a target that replays.
    """
    if commit_on_v1 is not None:
        when_loaded(_RUNNER, _commit_on_v1, commit_on_v1)
    install_cpu_workarounds()
    logger.debug("vLLM's names are wrapped in this worker; vllm_eagle_ext.compat says which.")


def _commit_on_v1(module: ModuleType, commit: CommitOnV1) -> None:
    """Call `commit` after each step of the V1 runner.

    Symptom: the V1 runner never tells a state kept by replay how many tokens were sampled.
    Cause: vLLM's commit hooks (RecoverSSM) exist only on its V2 runner.
    Seam: `GPUModelRunner._update_states_after_model_execute(self, output_token_ids, ..)`, which V1 runs
        right after sampling on hybrid targets, is wrapped; the original runs first and unchanged.
        REMOVE WHEN vLLM's V1 runner goes.
    """

    def around(original: Any, self: Any, output_token_ids: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, output_token_ids, *args, **kwargs)
        commit(self, output_token_ids)
        return result

    _wrap(module.GPUModelRunner, "_update_states_after_model_execute", around)


def install_cpu_workarounds() -> None:
    """Install the workarounds for V1, which is a CPU's runner."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        when_loaded(_REJECTION_SAMPLER, _repair_sampling)
        when_loaded(_RUNNER, _repair_chunks)
        when_loaded(_RUNNER, _sample_plainly)


def _repair_sampling(module: ModuleType) -> None:
    """Verify drafts of sampled requests at their own temperature, top-k and top-p on the V1 runner.

    Symptom: with any draft, sampled texts follow another distribution than the target's, a seed does not
        repeat them, and greedy requests next to sampled ones may change.
    Cause: vLLM 0.32's CPU stand-in for `expand_kernel` (utils/cpu_triton_utils.py, vllm#55005) fills an
        int64 copy of its output, so that verified rows get whatever the memory held.
    Seam: `expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from, replace_to)` of the V1
        rejection sampler. vLLM's registry of kernels for such platforms cannot take a second one once
        numba is loaded. REMOVE WHEN the stand-in fills what it is given.
    """

    def expand(_: Any, x: Any, ends: Any, count: int, replace_from: Any = 0, replace_to: Any = 0) -> Any:
        replaced = x.masked_fill(x == replace_from, replace_to)
        return replaced.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)), output_size=count)

    _wrap(module, "expand_batch_to_tokens", expand)


def _repair_chunks(module: ModuleType) -> None:
    """Draft from the right token at the end of a prompt's chunk on the V1 runner, a CPU's own.

    Symptom: on the V1 runner drafts after a prompt that took several steps differ from those after
        the same prompt in one step.
    Cause: a draft's row pairs a token's state with the next token. At the end of a chunk vLLM 0.32's V1
        takes the prompt's last token for the next one (`prepare_next_token_ids_padded`); V2 does not.
    Seam: `GPUModelRunner.propose_draft_token_ids` runs unchanged; meanwhile `num_tokens_no_spec`, from
        which the token is found, ends one after the chunk. REMOVE WHEN
        `prepare_next_token_ids_padded` goes by the rows of the step, or V1 goes.
    """

    def around(original: Any, runner: Any, step: Any, *args: Any, **kwargs: Any) -> Any:
        count = runner.input_batch.num_reqs
        inside = runner.discard_request_mask.np[:count]  # their prompts go on
        if not inside.any():
            return original(runner, step, *args, **kwargs)
        lengths = runner.input_batch.num_tokens_no_spec[:count]
        whole = lengths.copy()
        lengths[inside] = runner.optimistic_seq_lens_cpu[:count].numpy()[inside] + 1
        try:
            return original(runner, step, *args, **kwargs)
        finally:
            lengths[:] = whole

    _wrap(module.GPUModelRunner, "propose_draft_token_ids", around)


def _sample_plainly(module: ModuleType) -> None:
    """Sample a step without drafts as an engine without a draft does, on the V1 runner of a CPU.

    Symptom: with K = 0, and in steps of only prompts, sampling costs several times what it costs
        without a draft, with sampled requests most of it a random number for each token of the
        vocabulary; a request with only top-k ends the engine ("max(): Expected reduction dim").
    Cause: V1 hands every step of an engine with a draft to the rejection sampler, which prepares to
        replace rejected tokens whether there are any or not, and whose top-k takes no empty batch.
    Seam: `GPUModelRunner._sample(self, logits, spec_decode_metadata)` runs unchanged, without the
        metadata where they hold no draft: then vLLM takes its plain sampler, for the same rows in the
        same order. Budgets of thinking tokens then count one row for each request, as without a draft;
        by the drafts, of which there are none, they would force all ends in the first row.
        REMOVE WHEN V1 makes no such metadata for a step without drafts, or V1 goes.
    """

    def around(original: Any, self: Any, logits: Any, drafts: Any) -> Any:
        if drafts is not None and drafts.max_spec_len:
            return original(self, logits, drafts)
        budgets = self.input_batch.thinking_budget_state_holder
        if budgets is None:
            return original(self, logits, None)
        counted, budgets.in_spec_mode = budgets.in_spec_mode, False
        try:
            return original(self, logits, None)
        finally:
            budgets.in_spec_mode = counted

    _wrap(module.GPUModelRunner, "_sample", around)


def add_synthetic_acceptance() -> None:
    """Accept drafts at asked rates on the V1 runner of a CPU, in engines that `bench` starts.

    Symptom: "Synthetic acceptance not supported with CPU sampling" ends an engine with its first draft.
    Cause: vLLM 0.32's CPU stand-ins for both rejection kernels assert that there are no rates.
    Seam: `rejection_sample(draft_token_ids [N], .., target_logits [N, vocabulary], ..)` of V1 runs
        without the rates, on logits that leave the target only the draft, or anything but it.
        REMOVE WHEN the stand-ins (utils/cpu_triton_utils.py) take SYNTHETIC_MODE, or V1 goes.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        when_loaded(_REJECTION_SAMPLER, _wrap_rejection)


def _wrap_rejection(module: ModuleType) -> None:
    import torch

    def around(original: Any, drafts: Any, counts: Any, *args: Any, **kwargs: Any) -> Any:
        rates = kwargs.pop("synthetic_conditional_rates", None)
        if kwargs.pop("synthetic_mode", False):
            logits, sampling = args[3], args[5]
            lots = module.generate_uniform_probs(len(drafts), counts, sampling.generators, drafts.device)
            of_rows = lots.new_tensor([rate for count in counts for rate in rates[:count].tolist()])
            taken = ((lots < of_rows) & (drafts >= 0)).unsqueeze(1)  # -1: a place without a draft
            value = torch.where(taken, 0.0, -torch.inf).to(logits)
            own = drafts.clamp(min=0).long().unsqueeze(1)
            logits.masked_fill_(taken, -torch.inf).scatter_(1, own, value)
        return original(drafts, counts, *args, **kwargs)

    _wrap(module, "rejection_sample", around)


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


def when_loaded(name: str, action: Callable[..., None], *args: Any) -> None:
    """Run `action(module, *args)` now if the module is loaded, else right after its first import.

    Asked for twice before the import, an action runs once; afterwards each time, as `_wrap` allows.
    """
    waiting = [(f.name, f.action, f.args) for f in sys.meta_path if isinstance(f, _AfterImport)]
    if name in sys.modules:
        action(sys.modules[name], *args)
    elif (name, action, args) not in waiting:
        sys.meta_path.insert(0, _AfterImport(name, action, args))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds one module through the other finders and runs an action once it has executed.

    It stays in place until then: a module may be looked up without being imported, or fail at first.
    """

    def __init__(self, name: str, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.name = name
        self.action = action
        self.args = args
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
            loader: Any = spec.loader
            loader.exec_module = functools.partial(self._execute, loader.exec_module)
        return spec

    def _execute(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        execute(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            self.action(module, *self.args)
        except Exception:  # noqa: BLE001 - the import of vLLM's own module must not fail for us
            logger.exception("vllm-eagle-ext could not hook into %s; vLLM runs without it.", self.name)
