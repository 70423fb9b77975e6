"""What is mixed into vLLM's worker."""

from __future__ import annotations

import subprocess
import sys

from vllm_eagle_ext.measure.engine.probe import StepProbe


def test_every_name_is_prefixed():
    names = [name for name in dir(StepProbe) if not name.startswith("__")]
    assert names
    assert all(name.lstrip("_").startswith("eagle_ext_") for name in names)


def test_a_stock_worker_gets_nothing_of_the_plugin():
    """Nor does the import load vLLM or torch: they are there before it in a worker."""
    code = (
        "import sys, vllm_eagle_ext.measure.engine.probe\n"
        "heavy = {'vllm', 'torch', 'vllm_eagle_ext.plugin', 'vllm_eagle_ext.compat',"
        " 'vllm_eagle_ext.replay', 'vllm_eagle_ext.start'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
