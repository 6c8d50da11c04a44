"""What looks like a secret is not shown: not on pages, not by the API, not on a terminal."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "•••"
_WORDS = r"password|token|secret|authorization|api[_-]?key|card"
_KEY = re.compile(_WORDS, re.IGNORECASE)
_SAID = re.compile(
    rf"""((?:{_WORDS})\w*["']?\s*[:=]\s*)("[^"]*"|'[^']*'|(?:(?:bearer|basic)\s+)?[^\s,;&)\]}}"']+)""", re.IGNORECASE
)
"""`password=…`, `"api_key": "…"`, `Authorization: Bearer …`: in an error, or in the source line of a traceback."""


def redact(value: Any) -> Any:
    """The same value, with dots for what stands under a key that tells of a secret, at any depth."""
    if isinstance(value, dict):
        return {key: HIDDEN if _KEY.search(str(key)) else redact(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [redact(inner) for inner in value]
    return value


def redact_text(text: str) -> str:
    """A text for people, with dots for what it gives to a name that tells of a secret."""
    return _SAID.sub(rf"\1{HIDDEN}", text)
