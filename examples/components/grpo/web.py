"""A JSON server and a JSON client in a few lines of the standard library."""

import json
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def serve(port: int, answers: dict[str, Callable[[Any], Any]]) -> None:
    """Answer GET /health, and a POST of JSON at each of these paths."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200 if self.path == "/health" else 404, {})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(200, answers[self.path](asked))

        def _send(self, status: int, answer: Any) -> None:
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    print(f"serving on port {port}", flush=True)
    ThreadingHTTPServer(("", port), Handler).serve_forever()


def ask(url: str, value: Any) -> Any:
    """POST a value and return the answer."""
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(value).encode()), timeout=30) as answer:
        return json.load(answer)
