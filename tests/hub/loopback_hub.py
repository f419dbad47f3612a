"""A model hub on loopback that can drop connections, lie about sizes and ask for a token."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REVISION = "5" * 40


@dataclass
class Hub:
    """What the hub holds and how it misbehaves."""

    files: dict[str, bytes]
    repo: str = "owner/coder"
    drop_after: int = 0  # bytes of a body after which the connection breaks, every time
    promise: dict[str, int] = field(default_factory=dict)  # sizes it claims
    damage: str = ""  # a file whose bytes are not those of the checksum
    token: str = ""  # asked for
    gated: bool = False
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range
    url: str = ""

    def info(self) -> dict[str, object]:
        siblings = []
        for name, data in self.files.items():
            entry: dict[str, object] = {"rfilename": name, "size": self.promise.get(name, len(data))}
            if name.endswith((".safetensors", ".gguf")):
                digest = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": entry["size"], "pointerSize": 130}
                entry["blobId"] = "0" * 40
            else:
                entry["blobId"] = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
            siblings.append(entry)
        return {"_id": "1", "id": self.repo, "sha": REVISION, "siblings": siblings, "private": False, "tags": []}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None: ...

    def _answer(self, *, body: bool) -> None:
        hub = self.hub
        asked = self.headers.get("Range", "")
        hub.requests.append((self.command, self.path, asked))
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            code = "GatedRepo" if hub.gated else "RepoNotFound"
            return self._send(403 if hub.gated else 401, b"{}", {"X-Error-Code": code}, body=body)
        path = self.path.split("?")[0]
        if path == f"/api/models/{hub.repo}" or path.startswith(f"/api/models/{hub.repo}/revision"):
            return self._send(200, json.dumps(hub.info()).encode(), {"Content-Type": "application/json"}, body=body)
        start = f"/{hub.repo}/resolve/{REVISION}/"
        name = path.removeprefix(start)
        if not path.startswith(start) or name not in hub.files:
            return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"}, body=body)
        data = hub.files[name]
        if name == hub.damage:
            data = bytes([data[0] ^ 1]) + data[1:]
        headers = {"ETag": f'"{hashlib.sha256(hub.files[name]).hexdigest()}"', "X-Repo-Commit": REVISION}
        size = hub.promise.get(name, len(data))
        if asked:
            first = int(asked.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {first}-{size - 1}/{size}"
            return self._send(206, data[first:], headers, body=body, size=size - first)
        return self._send(200, data, headers | {"Accept-Ranges": "bytes"}, body=body, size=size)

    def _send(self, status: int, data: bytes, headers: dict[str, str], *, body: bool, size: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if size is None else size))
        self.end_headers()
        if not body:
            return
        limit = self.hub.drop_after
        if limit and status in (200, 206) and "ETag" in headers and len(data) > limit:
            self.wfile.write(data[:limit])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(data)
        if size is not None and size > len(data):
            self.close_connection = True


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
