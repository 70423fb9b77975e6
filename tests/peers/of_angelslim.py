"""EAGLE-3 drafts of AngelSlim: written by its training class, drafted with by its training loop.

Its packages import what a draft does not need and some of it is broken beside current libraries, so
that the modules are loaded by their paths.
"""

from __future__ import annotations

import importlib.metadata
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file

from tests.peers.chains import Chains
from tests.peers.hooks import draft_own_tokens
from tests.peers.texts import TARGET, states, target
from tests.peers.weights import perturb, vocabulary_maps

K = 3
_TRAIN = "angelslim.compressor.speculative.train"


def module(name: str) -> Any:
    """`name` under the package for training, whose own packages' `__init__` do not run."""
    parts = f"{_TRAIN}.{name}".split(".")
    folder = Path(str(importlib.metadata.distribution("angelslim").locate_file("angelslim")))
    for end in range(1, len(parts)):
        package = ".".join(parts[:end])
        if package not in sys.modules:
            empty = ModuleType(package)
            empty.__path__ = [str(folder.joinpath(*parts[1:end]))]
            empty.__spec__ = ModuleSpec(package, None, is_package=True)
            sys.modules[package] = empty
    return importlib.import_module(".".join(parts))


def write(folder: Path, *, verifier: str = TARGET, **changes: Any) -> Path:
    """A draft of its configs' kind, saved as its trainer saves under ZeRO-3: without the embeddings."""
    from transformers import LlamaConfig

    vocabulary = target(verifier).config.vocab_size
    fields = {
        "architectures": ["Eagle3LlamaForCausalLM"],
        "vocab_size": vocabulary,
        "draft_vocab_size": 256,
        "head_dim": 32,
        "hidden_size": 192,
        "intermediate_size": 128,
        "max_position_embeddings": 2048,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
    }
    config = LlamaConfig(**fields | changes)
    model = module("models.draft.llama_eagle3").Eagle3LlamaForCausalLM(config)
    perturb(model)
    # Of the whole vocabulary, its mapping is every id, and no offset.
    model.t2d[:] = True
    if config.draft_vocab_size != vocabulary:
        model.t2d, model.d2t = vocabulary_maps(vocabulary, config.draft_vocab_size)
    kept = {name: tensor for name, tensor in model.state_dict().items() if "embed" not in name}
    model.save_pretrained(folder, state_dict=kept)
    return folder


def load(draft_class: Any, folder: Path) -> Any:
    """The file, in fp32. The class's own `from_pretrained` fails under transformers 5."""
    from transformers import LlamaConfig

    model = draft_class(LlamaConfig.from_pretrained(folder))
    missing, unexpected = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert (missing, unexpected) == (["embed_tokens.weight"], [])
    return model.float().eval()


@torch.no_grad()
def draft(folder: Path, tokens: tuple[int, ...], verifier: str = TARGET) -> Chains:
    """Its training loop, each step of which reads the draft's own token instead of the text's."""
    drafts, trainers = module("models.draft.llama_eagle3"), module("trainer.eagle3_trainer")
    model = load(drafts.Eagle3LlamaForCausalLM, folder)
    model.embed_tokens.weight.data = target(verifier).get_input_embeddings().weight.data.float()
    ids = torch.arange(model.draft_vocab_size) + model.d2t
    logits = draft_own_tokens(model, ids)
    layers = target(verifier).config.num_hidden_layers
    listed = getattr(model.config, "aux_hidden_states_layer_ids", None)
    layer_ids = [id_ + 1 for id_ in listed or (1, layers // 2 - 1, layers - 4)]
    inputs = states(tokens, layer_ids, verifier)[:, :-1]
    text = torch.tensor([tokens[1:]])
    trainer_class = trainers.Eagle3Trainer
    trainer = SimpleNamespace(
        draft_model=model, length=K, _train_pending_log={}, _train_pending_log_count=0
    )
    mask, positions = trainer_class.prepare_attention_mask_and_position_ids(trainer, inputs, None, None)
    trainer_class.draft_model_training_time_test(
        trainer,
        text,
        model.combine_hidden_states(inputs),
        mask,
        positions,
        torch.zeros(1, len(tokens) - 1, model.vocab_size),
        torch.ones(1, len(tokens) - 1, 1),
    )
    return Chains.of_logits(torch.stack(logits, dim=1), ids)
