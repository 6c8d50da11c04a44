"""What a check has found."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    check: str
    level: Level
    text: str
    way_out: str = ""
