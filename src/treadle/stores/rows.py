"""What a store knows of all jobs together, and what the HTTP API writes down: rows, as frozen data."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one type in one queue."""

    queue: str
    type: str
    counts: dict[str, int]
    """By state."""
    oldest_due: int | None
    next_due: int | None
    limit: int | None
    exact: bool
    """False if so many are for later that not all of them were counted."""


class Counted(NamedTuple):
    """Rows like `{"status": "pending", "count": 3}`, and whether all jobs were counted."""

    rows: list[dict[str, Any]]
    exact: bool


class Sampled(NamedTuple):
    """How long a job waited and ran, in microseconds."""

    type: str
    queue: str
    waited: int
    ran: int


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """Who changed what."""

    who: str
    action: str
    what: str
    count: int = 1
    tenant: str = ""
    id: str = ""
    at: int = 0


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who may use the HTTP API."""

    hash: str
    name: str
    scopes: tuple[str, ...]
    tenant: str = ""
    expires_at: int | None = None
    created_at: int = 0


class Operation(msgspec.Struct, frozen=True):
    """One thing that is done to many jobs, batch by batch."""

    id: str
    who: str
    action: str
    filter: str
    total: int
    done: int = 0
    skipped: int = 0
    position: str | None = None
    started_at: int = 0
    updated_at: int = 0
    ended_at: int | None = None
    error: str | None = None


class Batch(NamedTuple):
    """What one step of an operation did, and where the next one goes on; None: there is none."""

    done: int
    skipped: int
    position: str | None
