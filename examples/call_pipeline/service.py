"""Stands for a speech service: asynchronous, over HTTP, and slow.

python -m call_pipeline.service PORT
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from .sound import understand

SECONDS = float(os.environ.get("SPEECH_SECONDS", "2"))
operations: dict[str, tuple[float, list[str]]] = {}
"""By key: when the operation is done, and the words."""
refused: dict[str, int] = {}
"""Organizations that have asked too often, and after how many seconds they may ask again."""


class Speech(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        speech = self.rfile.read(int(self.headers["Content-Length"]))
        id = self.headers["Idempotency-Key"]
        if wait := refused.get(id.partition(".")[0]):
            self.answer(429, {"error": "too many requests"}, wait)
            return
        if id not in operations:
            operations[id] = (time.monotonic() + SECONDS, understand(speech))
        self.answer(201, {"id": id})

    def do_GET(self) -> None:
        if self.path == "/operations":
            self.answer(200, {"operations": len(operations)})
        elif (found := operations.get(self.path.removeprefix("/operations/"))) is None:
            self.answer(404, {"error": f"there is no {self.path}"})
        else:
            done = time.monotonic() >= found[0]
            self.answer(200, {"done": done, "words": found[1] if done else None})

    def answer(self, status: int, data: object, retry_after: int = 0) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if retry_after:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Speech).serve_forever()
