"""A draft of another width without embeddings keeps a table that was never loaded, on V1."""

import tempfile
from types import SimpleNamespace

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

store = f"file://{tempfile.mkdtemp()}/store"
with set_current_vllm_config(VllmConfig()):
    init_distributed_environment(1, 0, store, 0, "gloo")
    initialize_model_parallel()
unloaded = torch.nn.Embedding(8, 2)
draft = SimpleNamespace(has_own_embed_tokens=False, model=SimpleNamespace(embed_tokens=unloaded))
target = SimpleNamespace(model=SimpleNamespace(embed_tokens=torch.nn.Embedding(8, 4)))
try:
    SpecDecodeBaseProposer._maybe_share_embeddings(SimpleNamespace(model=draft), target)
except ValueError as error:
    print(f"fault gone: {error}")
    raise SystemExit(1) from None
print(f"fault present: the draft keeps a table of width {unloaded.weight.shape[1]} that no file fills")
