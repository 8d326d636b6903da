"""A stand-in for a model hub and for a package index, on a loopback port."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LoopbackHub:
    """One repository, ``files``, at one revision; and a package index of ``wheels``.

    ``requests`` logs "METHOD path". ``fail_after`` (bytes) cuts every download short once.
    """

    def __init__(self, hub_id: str, files: dict[str, bytes], wheels: dict[str, bytes]) -> None:
        self.hub_id = hub_id
        self.files = files
        self.wheels = wheels
        self.revision = hashlib.sha1(repr(sorted(files)).encode()).hexdigest()
        self.requests: list[str] = []
        self.fail_after: int | None = None
        self.wrong_digests = False
        self.url = ""

    def answer(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body) of a request, as the published services answer."""
        self.requests.append(f"{method} {path}")
        path = path.partition("?")[0]
        if path.startswith(f"/api/models/{self.hub_id}/tree/"):
            return self._json([self._listing(name) for name in self.files])
        if path in (
            f"/api/models/{self.hub_id}",
            f"/api/models/{self.hub_id}/revision/{self.revision}",
        ):
            return self._json(
                {
                    "id": self.hub_id,
                    "sha": self.revision,
                    "tags": ["license:apache-2.0"],
                    "siblings": [{"rfilename": name} for name in self.files],
                }
            )
        prefix = f"/{self.hub_id}/resolve/{self.revision}/"
        if path.startswith(prefix) and path.removeprefix(prefix) in self.files:
            name = path.removeprefix(prefix)
            headers = {"ETag": f'"{self._digest(name)}"', "X-Repo-Commit": self.revision}
            return 200, headers, self.files[name]
        if path.startswith("/simple/"):
            return self._index(path)
        return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"

    def _index(self, path: str) -> tuple[int, dict[str, str], bytes]:
        name = path.removeprefix("/simple/").strip("/")
        if name in self.wheels:
            return 200, {}, self.wheels[name]
        links = "".join(
            f'<a href="/simple/{wheel}">{wheel}</a>'
            for wheel in self.wheels
            if wheel.startswith(name.replace("-", "_") + "-")
        )
        return (200 if links else 404), {"Content-Type": "text/html"}, links.encode()

    def _listing(self, name: str) -> dict[str, Any]:
        data = self.files[name]
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        listing: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": oid}
        if name.endswith((".safetensors", ".gguf")):
            listing["lfs"] = {"oid": self._digest(name), "size": len(data), "pointerSize": 1}
        return listing

    def _digest(self, name: str) -> str:
        data = self.files[name]
        if name.endswith((".safetensors", ".gguf")):
            return hashlib.sha256(data + b"!" * self.wrong_digests).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def _json(self, value: object) -> tuple[int, dict[str, str], bytes]:
        return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


@contextmanager
def serve(hub: LoopbackHub) -> Iterator[LoopbackHub]:
    """Run the stand-in; ``hub.url`` is where."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(body=True)

        def do_HEAD(self) -> None:
            self._reply(body=False)

        def _reply(self, *, body: bool) -> None:
            status, headers, data = hub.answer(self.command, self.path)
            start = 0
            if status == 200 and (span := self.headers.get("Range")):
                start = int(span.removeprefix("bytes=").split("-")[0])
                status = 206
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            if not body:
                return
            cut = hub.fail_after
            if cut is not None and len(data) - start > cut:
                hub.fail_after = None
                self.wfile.write(data[start : start + cut])
                self.close_connection = True
                return
            self.wfile.write(data[start:])

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
