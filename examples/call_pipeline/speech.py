"""A client of the speech service: start an operation, and ask later for its words."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.request import Request, urlopen

SERVICE = os.environ.get("SPEECH_URL", "http://127.0.0.1:8421")


def start(speech: bytes, key: str) -> str:
    """Returns the operation's id. A second request with the same key returns the same operation, so that a crash
    between the request and our commit does not start a second one."""
    operation: str = ask(Request(f"{SERVICE}/operations", speech, {"Idempotency-Key": key}))["id"]
    return operation


def words_of(operation: str) -> list[str] | None:
    """The words, or None while the operation runs."""
    answer = ask(Request(f"{SERVICE}/operations/{operation}"))
    words: list[str] | None = answer["words"] if answer["done"] else None
    return words


def ask(request: Request) -> dict[str, Any]:
    with urlopen(request, timeout=10) as answer:
        body: dict[str, Any] = json.load(answer)
        return body
