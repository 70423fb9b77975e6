"""Prefix caching has no kernel for recurrent states.

Kind: refused beforehand.
Met by: hybrid targets with drafts on the V1 runner without Triton.
Symptom: The engine ends at the first block boundary: `'function' object is not subscriptable`.
Cause: `platforms/cpu.py`, `CpuPlatform.register_triton_kernel_overrides` has no stand-in for
  `precopy_mamba_align_fused_kernel`, which `v1/worker/mamba_utils.py`,
  `MambaSpecDecodeGPUContext.run_fused_precopy` launches.
Releases: 0.32 and 0.33 (run).
Workaround: Refused at start with the remedy `--no-enable-prefix-caching` (`start/rules/states.py`,
  `state_can_be_kept`).
Remedy: `--no-enable-prefix-caching`.
Can go when: The CPU platform registers such a kernel.
"""

from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON
from vllm.v1.worker import mamba_utils

current_platform.register_triton_kernel_overrides()
try:
    mamba_utils.precopy_mamba_align_fused_kernel[(1, 1, 1)]
except TypeError as error:
    print(f"fault present: Triton {HAS_TRITON}: precopy_mamba_align_fused_kernel: {error}")
else:
    print("fault gone: the kernel can be launched")
    raise SystemExit(1)
