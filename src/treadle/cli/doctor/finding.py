"""What a check has found, and how bad it is."""

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


def ok(check: str, text: str, way_out: str = "") -> Finding:
    return Finding(check, Level.OK, text, way_out)


def warning(check: str, text: str, way_out: str) -> Finding:
    return Finding(check, Level.WARNING, text, way_out)


def problem(check: str, text: str, way_out: str) -> Finding:
    return Finding(check, Level.PROBLEM, text, way_out)
