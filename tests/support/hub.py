"""A hub on this machine with one repository, for what reads a draft without downloading it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    range: str | None
    authorization: str | None
    sent: int  # bytes of the answer's body


@dataclass(slots=True)
class Hub:
    """`refusals` maps the beginning of a path to a status and the hub's name for the error.

    A status of 302 sends the asker round in circles.
    """

    repository: str
    folder: Path
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    def requests_for(self, words: str) -> list[Request]:
        return [request for request in self.requests if words in request.path]

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for a path without its query."""
        for beginning, (status, code) in self.refusals.items():
            if path.startswith(beginning):
                around = {"Location": f"{self.url}{path}"} if status == 302 else {}
                return status, {"X-Error-Code": code, "X-Error-Message": code, **around}, b""
        api, resolve = f"/api/models/{self.repository}", f"/{self.repository}/resolve/"
        if path == api or path.startswith(f"{api}/revision/"):
            return 200, {}, _dump({"id": self.repository, "sha": COMMIT, "tags": [], "siblings": []})
        if path.startswith(f"{api}/tree/"):
            inside = path.rpartition("/")[2] if self._is_folder(path) else ""
            files = sorted((self.folder / inside).iterdir())
            return 200, {}, _dump([_entry(file, inside) for file in files])
        if path.startswith(resolve):  # large files lie elsewhere
            folder, _, name = path.rpartition("/")
            inside = folder.rpartition("/")[2] + "/" if self._is_folder(folder) else ""
            return 302, {"Location": f"{self.url}/elsewhere/{inside}{name}"}, b""
        if path.startswith("/elsewhere/"):
            return 200, {}, (self.folder / path.removeprefix("/elsewhere/")).read_bytes()
        return 404, {"X-Error-Code": "RepoNotFound"}, b""

    def _is_folder(self, path: str) -> bool:
        """Whether the path is a folder of the repository; a revision may have slashes too."""
        return (self.folder / path.rpartition("/")[2]).is_dir()


def _entry(file: Path, inside: str) -> dict[str, object]:
    path = f"{inside}/{file.name}" if inside else file.name
    if file.is_dir():
        return {"type": "directory", "path": path, "oid": "0" * 40}
    return {"type": "file", "path": path, "size": file.stat().st_size, "oid": "0" * 40}


def _dump(reply: object) -> bytes:
    return json.dumps(reply).encode()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        status, headers, body = self.hub.answer(path)
        wanted = self.headers.get("Range")
        if status == 200 and wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
            status, body = 206, body[int(first) : int(last) + 1]
        self.hub.requests.append(
            Request(path, wanted, self.headers.get("Authorization"), len(body) if with_body else 0)
        )
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serve_hub(repository: str, folder: Path) -> Iterator[Hub]:
    hub = Hub(repository, folder)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
