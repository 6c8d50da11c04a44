"""Stands for a language model and a shop, over HTTP. Each answer follows from the request alone.

python -m agent.service PORT

It keeps a journal of all requests, GET /journal, and sometimes has no time: the first request of some kinds is refused.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PRICES = {"o-1": 1_999, "o-2": 12_900, "o-3": 4_500, "o-4": 89_900, "o-5": 7_250, "o-6": 3_000}
MOODY = {"/model/answer": ("loud?", 429), "/model/move": ("stock of", 503)}
"""Which requests are refused the first time, and how: those with this in their text."""
SECONDS = float(os.environ.get("MODEL_SECONDS", "0"))
"""How long the model thinks."""


class Journal:
    """How often each request was made, and refused."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.done: dict[str, str] = {}
        """What has changed something, by its key."""
        self.lock = threading.Lock()

    def admit(self, path: str, text: str) -> int:
        """Write a request down. Return the status of its answer."""
        request, (word, refusal) = f"{path} {text}", MOODY.get(path, ("", 200))
        with self.lock:
            self.asked[request] += 1
            if self.asked[request] > 1 or word not in text or refusal == 200:
                return 200
            self.refused[request] += 1
            return refusal


journal = Journal()


def plan(said: str) -> dict[str, Any]:
    [order] = re.findall(r"o-\d+", said)
    return {"order": order, "questions": [f"who pays if {order} is {fault}?" for fault in ("broken", "late", "loud")]}


def answer(question: str) -> dict[str, Any]:
    return {"text": f"{question} The shop does."}


def move(talk: list[str]) -> dict[str, Any]:
    """Ask two tools, one after the other, and then decide."""
    [order] = re.findall(r"o-\d+", talk[0])
    chosen = {"tool": "", "arguments": {}, "refund": 0, "reply": ""}
    if not any(line.startswith("order") for line in talk):
        return {**chosen, "tool": "look_up_order", "arguments": {"order": order}}
    if not any(line.startswith("stock") for line in talk):
        return {**chosen, "tool": "check_stock", "arguments": {"item": order}}
    wants = PRICES[order] if "money" in talk[0] else 0
    return {**chosen, "refund": wants, "reply": f"We are sorry about {order}."}


MODEL: dict[str, Callable[..., dict[str, Any]]] = {"plan": plan, "answer": answer, "move": move}


def change(path: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
    """Do what was asked for, once for each key."""
    with journal.lock:
        return {"text": journal.done.setdefault(f"{path} {key}", json.dumps(body))}


class Service(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        status = journal.admit(self.path, text)
        self.send(status, self.respond(json.loads(text)) if status == 200 else {"error": "no time"})

    def respond(self, body: dict[str, Any]) -> dict[str, Any]:
        kind, _, what = self.path.removeprefix("/").partition("/")
        if kind == "model":
            time.sleep(SECONDS)
            return MODEL[what](**body)
        if what == "order":
            return {"text": f"order {body['order']} cost {PRICES[body['order']]}"}
        if what == "stock":
            return {"text": f"stock of {body['item']}: 3"}
        return change(self.path, self.headers["Idempotency-Key"], body)

    def do_GET(self) -> None:
        with journal.lock:
            self.send(200, {"asked": journal.asked, "refused": journal.refused, "done": journal.done})

    def send(self, status: int, data: object) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "0.1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Service).serve_forever()
