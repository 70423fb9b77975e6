"""A draft gets the target's embeddings with their adapters.

Kind: worked around.
Met by: drafts without embeddings of their own together with LoRA, on the V1 runner.
Symptom: An active adapter ends the engine: `einsum(): subscript b has size ..`.
Cause: `v1/spec_decode/llm_base_proposer.py`, `SpecDecodeBaseProposer._maybe_share_embeddings` shares
  the adapted layer, whose adapters go by the rows of the target's batch; the draft has other rows. V2
  shares the plain layer (`v1/worker/gpu/spec_decode/eagle/utils.py`, `maybe_share_target_embed`).
Releases: 0.32 and 0.33 (run).
Workaround: `families/parts/resolved.py` takes the plain embeddings out of the adapted layer.
Can go when: V1's `_maybe_share_embeddings` does as V2 does, or the V1 runner goes.
"""

import tempfile
from types import SimpleNamespace

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.lora.layers import VocabParallelEmbeddingWithLoRA
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

store = f"file://{tempfile.mkdtemp()}/store"
with set_current_vllm_config(VllmConfig()):
    init_distributed_environment(1, 0, store, 0, "gloo")
    initialize_model_parallel()
    own, plain = VocabParallelEmbedding(8, 4), VocabParallelEmbedding(8, 4)
adapted = VocabParallelEmbeddingWithLoRA(plain)
draft = SimpleNamespace(has_own_embed_tokens=False, model=SimpleNamespace(embed_tokens=own))
target = SimpleNamespace(model=SimpleNamespace(embed_tokens=adapted))
SpecDecodeBaseProposer._maybe_share_embeddings(SimpleNamespace(model=draft), target)
if draft.model.embed_tokens is plain:
    print("fault gone: the draft has the plain embeddings")
    raise SystemExit(1)
print(f"fault present: the draft embeds by {type(draft.model.embed_tokens).__name__}")
