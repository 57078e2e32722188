"""The figures of `windlass watch` on a port of this machine alone, for a Prometheus that scrapes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from windlass.errors import MachineError


class MetricsPort:
    """Serves `text()` on 127.0.0.1 while it is entered; does nothing where no port is wanted."""

    def __init__(self, port: int | None, text: Callable[[], str]) -> None:
        self._port = port
        self._text = text
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> MetricsPort:
        if self._port is None:
            return self
        text = self._text

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                body = text().encode("utf-8", "backslashreplace")
                self.send_response(200 if self.path == "/metrics" else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.end_headers()
                self.wfile.write(body if self.path == "/metrics" else b"")

            def log_message(self, *_: object) -> None:
                """Nothing is printed over the screen."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        except OSError as error:
            raise MachineError(
                f"cannot listen on port {self._port}: {error.strerror}", hint="choose another port with --prometheus"
            ) from error
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
