"""Adds to pyproject.toml the project's address, once it has one, and README as an index shows it."""

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
VERSION = (ROOT / "vllm_eagle_ext/version.py").read_text()
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "".join(re.findall(r'^PROJECT_URL = "(.*)"', VERSION, re.MULTILINE))
# Who reads it on an index has no clone, nor the files that it links to.
ON_AN_INDEX = {
    "<address of this repository>": ADDRESS,
    "From the clone, in a clean environment, `pip install '.[cuda]'`":
        "In a clean environment, `pip install 'vllm-eagle-ext[cuda]'`",
}  # fmt: skip
if not all(words in README for words in ON_AN_INDEX):
    raise SystemExit(f"README has other words now: {list(ON_AN_INDEX)}")
if ADDRESS:
    for words, others in ON_AN_INDEX.items():
        README = README.replace(words, others)
    README = re.sub(r"\]\((?!https?:|#)", f"]({ADDRESS}/blob/main/", README)

setup(
    project_urls={"Source": ADDRESS} if ADDRESS else {},
    long_description=README,
    long_description_content_type="text/markdown",
)
