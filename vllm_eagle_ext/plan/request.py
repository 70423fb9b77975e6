# SPDX-License-Identifier: Apache-2.0
"""What a plan is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_eagle_ext.checkpoint.attention import WindowOption

# Bytes of a key's or value's element; None: as the model's dtype.
KV_DTYPES: dict[str, int | None] = {
    "auto": None, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip
# vLLM's defaults for a server on a GPU of 70 GiB or more; on a CPU 128.
MAX_NUM_SEQS, UTILIZATION = 1024, 0.92
# Activations, CUDA graphs and the runtime: measured by vLLM at start, not known before.
RESERVE_GIB = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    target: str | None  # None: as the draft names it
    target_revision: str | None = None
    gpu_mem: float | None = None  # GiB of one GPU; None: of this machine's
    tp: int = 1
    max_model_len: int | None = None  # None: the target's
    max_num_seqs: int = MAX_NUM_SEQS
    gpu_memory_utilization: float = UTILIZATION
    prefix_caching: bool | None = None  # None: as `check` would have it served
    kv_dtype: str = "auto"
    draft: str | None = None
    draft_window: WindowOption = None  # as the option of that name
    draft_vocabulary: str | None = None  # as the option of that name
    weights_gib: float | None = None
    reserve_gib: float = RESERVE_GIB
    cpu: bool = False
    download_dir: str | None = None
    vllm: str | None = None  # release; None: the one installed, else the newest known
    device: str | None = None  # sm_90, ..; None: this machine's GPU, else sm_90
    gdn_prefill: str = "auto"  # as vLLM's --gdn-prefill-backend
    mamba_block_size: int | None = None  # as vLLM's option
    attention_block: int | None = None  # tokens that a block is a multiple of; None: as vLLM's default
