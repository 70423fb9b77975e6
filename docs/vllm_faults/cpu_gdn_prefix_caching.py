"""The kernel that moves recurrent states at block boundaries has no stand-in for CPUs."""

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
