"""How to use the speech service: start an operation, ask later what was said."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.request import Request, urlopen

SERVICE = os.environ.get("SPEECH_URL", "http://127.0.0.1:8421")


def start(speech: bytes, key: str) -> str:
    """The operation's id. The key makes a second request for the same call the same operation: who dies between the
    request and our commit costs no second one."""
    operation: str = ask(Request(f"{SERVICE}/operations", speech, {"Idempotency-Key": key}))["id"]
    return operation


def words_of(operation: str) -> list[str] | None:
    """What was said, or None while the service is still listening."""
    answer = ask(Request(f"{SERVICE}/operations/{operation}"))
    words: list[str] | None = answer["words"] if answer["done"] else None
    return words


def ask(request: Request) -> dict[str, Any]:
    with urlopen(request, timeout=10) as answer:
        told: dict[str, Any] = json.load(answer)
        return told
