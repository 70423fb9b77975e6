"""A chunk's end is paired with the wrong token.

Kind: worked around.
Met by: EAGLE-3 drafts on the V1 runner.
Symptom: Fewer drafts are accepted after a prompt of several steps.
Cause: A draft's row pairs a token's state with the token that follows.
  `v1/spec_decode/llm_base_proposer.py`, `SpecDecodeBaseProposer.prepare_next_token_ids_padded` takes
  the token at `num_tokens_no_spec - 1`, which is the prompt's last one, although the chunk ends before.
  The V2 runner does not.
Releases: 0.32 and 0.33 (run).
Workaround: `compat.py`, `install_cpu_workarounds`: on a CPU, whose only runner is V1,
  `num_tokens_no_spec` ends one token after the chunk while `propose_draft_token_ids` runs. Elsewhere V1
  is left as it is.
Can go when: `prepare_next_token_ids_padded` goes by the tokens of the step, or the V1 runner goes.
"""

from types import SimpleNamespace

import numpy as np
import torch
from vllm.platforms import current_platform

current_platform.import_kernels()
current_platform.register_triton_kernel_overrides()
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer  # noqa: E402

prompt = list(range(100, 110))  # of which a first chunk of four tokens is computed in this step
request = SimpleNamespace(get_token_id=prompt.__getitem__)
batch = SimpleNamespace(
    num_reqs=1, req_ids=["a"], num_tokens_no_spec=np.array([len(prompt)]), vocab_size=1000
)
backup = torch.zeros(1, dtype=torch.int32)
proposer = SimpleNamespace(
    backup_next_token_ids=SimpleNamespace(np=backup.numpy(), gpu=backup, copy_to_gpu=lambda count: None)
)
found, _ = SpecDecodeBaseProposer.prepare_next_token_ids_padded(
    proposer, torch.tensor([[5]], dtype=torch.int32), {"a": request}, batch, torch.tensor([True])
)
if found.tolist() == [prompt[-1]]:
    print(f"fault present: the chunk 100..103 is followed by {prompt[-1]}, not by 104")
else:
    print(f"fault gone: the chunk 100..103 is followed by {found.tolist()}")
    raise SystemExit(1)
