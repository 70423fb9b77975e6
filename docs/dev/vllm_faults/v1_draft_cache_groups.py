"""A draft's layers must share a KV-cache group.

Kind: refused beforehand.
Met by: drafts of several layers for targets of windowed and full layers, such as gpt-oss, on the V1
  runner.
Symptom: After loading it ends with `All drafting layers should belong to the same kv cache group`.
Cause: `v1/spec_decode/llm_base_proposer.py`, `SpecDecodeBaseProposer.validate_same_kv_cache_group`
  asserts one group, and `_get_kv_cache_groups_uniform_page_size` (0.32: `v1/core/kv_cache_utils.py`,
  0.33: `v1/core/kv_cache_planning.py`) cuts the full layers, the draft's among them, where they
  outnumber the windowed ones by half.
Releases: 0.32 and 0.33 (run).
Workaround: Refused before weights are loaded, with the remedy `--disable-hybrid-kv-cache-manager`
  (`start/rules/cache_groups.py`, `draft_cache_lies_in_one_group`).
Remedy: `--disable-hybrid-kv-cache-manager`.
Can go when: V1 takes a draft in several groups, or the V1 runner goes.
"""

from types import SimpleNamespace

import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

try:
    from vllm.v1.core.kv_cache_planning import _get_kv_cache_groups_uniform_page_size
except ImportError:  # 0.32
    from vllm.v1.core.kv_cache_utils import _get_kv_cache_groups_uniform_page_size

shape = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
draft = [f"draft.{i}" for i in range(4)]
specs = {f"target.{i}": FullAttentionSpec(**shape) for i in range(2)}
specs |= {name: FullAttentionSpec(**shape) for name in draft}
specs |= {f"windowed.{i}": SlidingWindowSpec(**shape, sliding_window=16) for i in range(2)}
cache = SimpleNamespace(kv_cache_groups=_get_kv_cache_groups_uniform_page_size(specs))
try:
    SpecDecodeBaseProposer.validate_same_kv_cache_group(
        SimpleNamespace(_draft_attn_layer_names=set(draft)), cache
    )
except AssertionError as error:
    print(f"fault present: {error}")
else:
    print("fault gone: the draft's layers share a group, or need not")
    raise SystemExit(1)
