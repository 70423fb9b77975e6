"""The site: `python -m tools.website` makes build/site of the pages; mkdocs.yml calls the hooks.

The project's address is read from where the metadata has it; while it is empty, the site has no links to
the repository. A link to a file that the site leaves out leads there, or is plain text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SITE_PAGES, SITE = ROOT / "build/pages", ROOT / "build/site"
LARGEST = 8_000_000  # bytes; without what is left out it has five millions
# Pages link to some files of these folders; models and packages of Python are left out.
LEFT_OUT = (":!tests", ":!*.safetensors", ":!*/tokenizer*.json", ":!examples/*/*.py")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def project_url() -> str:
    source = (ROOT / "vllm_eagle_ext/version.py").read_text(encoding="utf-8")
    return "".join(re.findall(r'^PROJECT_URL = "(.*)"', source, re.MULTILINE)).rstrip("/")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link the repository, and each page to its source there."""
    if url := project_url():
        config.repo_url, config.repo_name = url, "Repository"
        config.edit_uri = f"{url}/edit/main/"
    return config


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Lead links to files that the site lacks to the repository."""

    def elsewhere(link: re.Match[str]) -> str:
        words, target, anchor = link[1], link[2], link[3] or ""
        path = os.path.normpath(PurePosixPath(page.file.src_uri).parent / target)
        if files.get_file_from_path(path) or not (ROOT / path).exists():  # mkdocs names what is nowhere
            return link[0]
        url = project_url()
        return f"[{words}]({url}/blob/main/{path}{anchor})" if url else words

    return _LINK.sub(elsewhere, markdown)


def main() -> None:
    shutil.rmtree(SITE_PAGES, ignore_errors=True)
    shown = ["git", "ls-files", "-z", "--", "*.md", "docs", "examples", *LEFT_OUT]
    listed = subprocess.check_output(shown, cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        (SITE_PAGES / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, SITE_PAGES / name)
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    subprocess.run(mkdocs, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    if (size := sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())) > LARGEST:
        sys.exit(f"the site has {size} bytes, more than {LARGEST}")


if __name__ == "__main__":
    main()
