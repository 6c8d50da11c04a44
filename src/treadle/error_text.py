"""How errors show a value, and what was probably meant."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Collection

from treadle.redact import without_password


def shown(value: object, *, with_password: bool = True) -> str:
    """`repr(value)`, clipped to one line. It works even if `__repr__` raises."""
    try:
        text = repr(value)
    except Exception:
        text = f"<unprintable {type(value).__name__}>"
    if not with_password:  # before clipping: a clipped password would not be recognized
        text = without_password(text)
    return text if len(text) <= 120 else f"{text[:120]}… ({len(text)} characters)"


def hashed(key: str) -> str:
    """A dedupe key as texts show it: it may be made of a payload."""
    return f"sha256 {hashlib.sha256(key.encode()).hexdigest()[:16]}"


def nearest(word: object, known: Collection[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, known, n=1)), None) if isinstance(word, str) else None


def hint(word: object, known: Collection[str], otherwise: str) -> str:
    near = nearest(word, known)
    return f"did you mean {near!r}?" if near else otherwise
