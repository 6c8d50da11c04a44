"""The dedupe key: two enqueues with the same key are one job."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from treadle.errors import BadOption

Dedupe = bool | str | Callable[..., str] | None
"""`True`: the type, tenant and payload are the key. A string: the key. A function: it returns the key."""

LIMIT = 512
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""No database accepts NUL or a lone surrogate in text."""


def make_dedupe_key(type: str, tenant: str | None, payload: Mapping[str, Any]) -> str:
    """`<type>::<tenant or global>::<payload as JSON with sorted keys>`."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"{type}::{tenant or 'global'}::{text}"


def key_for(dedupe: Dedupe, type: str, tenant: str, payload: Mapping[str, Any]) -> str | None:
    """The key that `dedupe` asks for, or None."""
    if dedupe is None or dedupe is False:
        return None
    if dedupe is True:
        key = make_dedupe_key(type, tenant, payload)
        return key if len(key.encode()) <= LIMIT else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"
    key = dedupe(**payload) if callable(dedupe) else dedupe
    if not isinstance(key, str) or not key or _UNSTORABLE.search(key):
        raise BadOption("dedupe", key, "a key is a string that is not empty, or True for the payload itself")
    if len(key.encode()) > LIMIT:
        raise BadOption("dedupe", key, f"a key has at most {LIMIT} bytes; hash a longer one")
    return key
