"""How to use the speech service: start an operation, ask later what was said."""

from __future__ import annotations

import os

import httpx

service = httpx.Client(base_url=os.environ.get("SPEECH_URL", "http://127.0.0.1:8421"), timeout=10)


def start(speech: bytes, key: str) -> str:
    """The operation's id. The key makes a second request for the same call the same operation: who dies between the
    request and our commit costs no second one."""
    answer = service.post("/operations", content=speech, headers={"Idempotency-Key": key})
    operation: str = answer.raise_for_status().json()["id"]
    return operation


def words_of(operation: str) -> list[str] | None:
    """What was said, or None while the service is still listening."""
    answer = service.get(f"/operations/{operation}").raise_for_status().json()
    words: list[str] | None = answer["words"] if answer["done"] else None
    return words
