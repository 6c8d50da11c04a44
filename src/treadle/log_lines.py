"""What handlers log, line by line."""

from __future__ import annotations

from datetime import datetime

import msgspec


class NewLine(msgspec.Struct, frozen=True):
    """A line to be stored."""

    line: int
    """From 1 on, in each attempt."""
    ago: int
    """Microseconds."""
    level: str
    message: str


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A stored line of a log."""

    attempt: int
    line: int
    """From 1 on, in each run."""
    at: datetime
    level: str
    message: str
