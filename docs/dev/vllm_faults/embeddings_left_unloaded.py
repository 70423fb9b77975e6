"""Embeddings of another width stay uninitialised.

Kind: refused beforehand.
Met by: drafts narrower or wider than the target without embed_tokens, on the V1 runner.
Symptom: None of the draft's tokens is accepted.
Cause: `v1/spec_decode/llm_base_proposer.py`, `SpecDecodeBaseProposer._maybe_share_embeddings` keeps the
  draft's own table where the widths differ, though no file has filled it.
Releases: 0.32 and 0.33 (run).
Workaround: Refused (`embeddings_can_be_shared`).
Can go when: VLLM raises where it cannot share embeddings that a draft lacks.
"""

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
