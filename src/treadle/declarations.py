"""What the code of several workers declares of one thing, a type or a schedule, and whose declaration counts. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from treadle.codec import encode

KEPT = 20
"""How many declarations of one thing are remembered."""


def spec_of(declared: Any) -> str:
    """The hash of all that was declared: two declarations with the same one are the same."""
    return hashlib.sha256(encode(declared)).hexdigest()[:16]


def wins(mine: str, current: str, known: Mapping[str, int], live: Collection[str]) -> bool:
    """Whether a declaration replaces the current one: it is newer, or no live worker declares the current one.

    `known`: when each was declared first. So an old worker that restarts during a deployment changes nothing, and after
    a rollback the old declaration is back.
    """
    if mine == current:
        return False
    return mine not in known or known[mine] > known.get(current, 0) or current not in live


def remembered(known: Mapping[str, int], mine: str, now: int) -> dict[str, int]:
    """The known declarations with this one, which is new or has been known; the newest are kept."""
    newest = sorted({**known, mine: known.get(mine, now)}.items(), key=lambda item: -item[1])
    return dict(newest[:KEPT])
