"""A server on this machine that answers as much of the Hugging Face hub's API as a download needs."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubServer:
    """Repositories by name, each a mapping from file name to content.

    ``broken`` files are cut off after half their bytes on the first request. ``requests`` holds (method, path, Range).
    """

    repositories: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    address: str = ""

    def downloads(self) -> list[str]:
        """Names of the files whose content was asked for, in order."""
        found = (re.search(r"/resolve/[^/]+/(.+)", path) for method, path, _ in self.requests if method == "GET")
        return [match[1] for match in found if match]

    @contextmanager
    def running(self) -> Iterator[HubServer]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        self.address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
            self._repository(match[1], lambda: self._json(self._info(match[1])))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+", path):
            self._repository(match[1], lambda: self._json(self._tree(match[1])))
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._repository(match[1], lambda: self._file(match[1], match[2]))
        else:
            self._refuse(404, "EntryNotFound")

    def _repository(self, name: str, answer) -> None:  # type: ignore[no-untyped-def]
        if name in self.hub.failing:
            self._refuse(500, "")
        elif name not in self.hub.repositories:
            # As the real hub does for a reader that is not logged in.
            self._refuse(401, "RepoNotFound")
        elif name in self.hub.gated and self.path.startswith(f"/{name}"):
            self._refuse(403, "GatedRepo")
        else:
            answer()

    def _size(self, name: str, content: bytes) -> int:
        return self.hub.sizes.get(name, len(content))

    def _info(self, name: str) -> object:
        files = self.hub.repositories[name].items()
        return {
            "id": name,
            "sha": COMMIT,
            "gated": "manual" if name in self.hub.gated else False,
            "siblings": [{"rfilename": file, "size": self._size(file, content)} for file, content in files],
        }

    def _tree(self, name: str) -> object:
        files = self.hub.repositories[name].items()
        return [
            {"type": "file", "path": file, "size": self._size(file, content), "oid": _digest(content)[:40]}
            for file, content in files
        ]

    def _file(self, repository: str, name: str) -> None:
        content = self.hub.repositories[repository].get(name)
        if content is None:
            self._refuse(404, "EntryNotFound")
            return
        start = 0
        if found := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            start = int(found[1])
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{_digest(content)}"')
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if name in self.hub.broken:
            self.hub.broken.remove(name)
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.close_connection = True
        else:
            self.wfile.write(content[start:])

    def _json(self, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
