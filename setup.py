"""Adds to pyproject.toml the project's address, once it has one, and README's links from there."""

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
VERSION = (ROOT / "vllm_eagle_ext/version.py").read_text()
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "".join(re.findall(r'^PROJECT_URL = "(.*)"', VERSION, re.MULTILINE))
if ADDRESS:  # an index shows README without the files that it links to
    README = re.sub(r"\]\((?!https?:|#)", f"]({ADDRESS}/blob/main/", README)

setup(
    project_urls={"Source": ADDRESS} if ADDRESS else {},
    long_description=README,
    long_description_content_type="text/markdown",
)
