"""Links to files that the site leaves out, before and after the project has an address."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tools import website

PAGE = (
    "[gate](gated.md) [drafts](../tests/fixtures/checkpoints#a) [no](nowhere.md) [vLLM](https://vllm.ai)"
)


@pytest.mark.parametrize(
    ("address", "drafts"),
    [("", "drafts"), ("https://f/p", "[drafts](https://f/p/blob/main/tests/fixtures/checkpoints#a)")],
)
def test_links_to_files_that_the_site_lacks(monkeypatch, address, drafts):
    monkeypatch.setattr(website, "project_url", lambda: address)
    page = SimpleNamespace(file=SimpleNamespace(src_uri="docs/drafts.md"))
    files = SimpleNamespace(get_file_from_path={"docs/gated.md": True}.get)
    expected = PAGE.replace("[drafts](../tests/fixtures/checkpoints#a)", drafts)
    assert website.on_page_markdown(PAGE, page, files) == expected
