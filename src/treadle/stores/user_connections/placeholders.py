"""Statements with `%(name)s`, for drivers that number their parameters."""

from __future__ import annotations

import re
from functools import lru_cache

_NAMED = re.compile(r"%\((\w+)\)s")


@lru_cache(256)
def numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """The same with `$1, $2 …`, and the names in that order. A name that is used twice has one number."""
    numbers: dict[str, int] = {}
    text = _NAMED.sub(lambda found: f"${numbers.setdefault(found[1], len(numbers) + 1)}", sql)
    return text, tuple(numbers)
