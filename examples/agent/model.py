"""A client of the language model. What each function returns is a step's value: JSON, by its annotation."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from treadle import RateLimited

SERVICE = os.environ.get("SERVICE_URL", "http://127.0.0.1:8422")


@dataclass
class Plan:
    order: str
    questions: list[str]


@dataclass
class Move:
    """What to do next: call a tool, or, without one, refund so many cents and reply."""

    tool: str
    arguments: dict[str, str]
    refund: int
    reply: str


def plan(said: str) -> Plan:
    return Plan(**post("/model/plan", {"said": said}))


def answer(question: str) -> str:
    text: str = post("/model/answer", {"question": question})["text"]
    return text


def next_move(talk: list[str]) -> Move:
    return Move(**post("/model/move", {"talk": talk}))


def post(path: str, body: dict[str, Any], key: str = "") -> dict[str, Any]:
    """Post JSON. If the service has no time, all jobs of this limit and tenant wait for as long as it asks for."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    try:
        with urlopen(Request(f"{SERVICE}{path}", json.dumps(body).encode(), headers), timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except HTTPError as refusal:
        if refusal.code != 429:
            raise
        raise RateLimited(float(refusal.headers["Retry-After"])) from refusal
