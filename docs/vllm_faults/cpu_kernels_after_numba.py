"""Replacing Triton kernels on a CPU fails once numba is imported, as its ngram drafter does."""

import numba
from vllm.platforms import current_platform

try:
    current_platform.register_triton_kernel_overrides()
except Exception as error:  # noqa: BLE001 - numba's own kind
    print(
        f"fault present: numba {numba.__version__}: {type(error).__name__}: {str(error).splitlines()[0]}"
    )
else:
    print("fault gone: kernels were replaced beside numba")
    raise SystemExit(1)
