"""What looks like a secret is hidden on pages, in the API and on a terminal."""

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
    """The same value, with dots for the values of keys that name a secret, at any depth."""
    if isinstance(value, dict):
        return {key: HIDDEN if _KEY.search(str(key)) else redact(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [redact(inner) for inner in value]
    return value


def redact_text(text: str) -> str:
    """The same text, with dots for the values that it assigns to names of secrets."""
    return _SAID.sub(rf"\1{HIDDEN}", text)
