"""Kernels cannot be replaced while numba is loaded.

Kind: explains an observation.
Met by: a second engine in a process, and plugins that register kernels of a CPU.
Symptom: `'_lib_fn_wrapper' object has no attribute 'get'` while a worker starts.
Cause: `triton_utils/dispatcher.py`, `_rebind_kernels` looks at every attribute of every module and
  calls `vars(value).get`, which not every `__dict__` has.
Releases: 0.32 and 0.33 (run).
Workaround: `compat.py` wraps functions of the rejection sampler instead of registering a kernel; tests
  that start two engines in a process keep the kernels of the first.
Can go when: The scan looks only at plain dicts.
"""

import numba
from vllm.platforms import current_platform

try:
    current_platform.register_triton_kernel_overrides()
except Exception as error:  # noqa: BLE001 - numba's own kind
    print(
        f"fault present: numba {numba.__version__}: {type(error).__name__}: {str(error).splitlines()[0]}"
    )
else:
    print("fault gone: kernels were replaced although numba was imported")
    raise SystemExit(1)
