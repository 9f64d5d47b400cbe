"""A web server of this machine, in a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class WebServer(ThreadingHTTPServer):
    """Answers as a handler says, until it is closed. A `Handler` notes path and Range of each request in `asked`."""

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.asked: list[tuple[str, str | None]] = []
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """May be called again."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def __exit__(self, *error: object) -> None:
        self.close()


class Handler(BaseHTTPRequestHandler):
    """Notes requests, and says nothing on the terminal. Tests say what it answers."""

    server: WebServer

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append((self.path, asked))
        self.answer(asked)

    def answer(self, asked: str | None) -> None:
        """Answers one request; `asked` is its Range."""
        raise NotImplementedError

    def log_message(self, *arguments: object) -> None:
        pass
