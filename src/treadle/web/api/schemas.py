"""What goes over the wire, where it is not simply a Job."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from treadle.job import STATE_NAMES, Attempt, Job
from treadle.views import WorkerOut

Name = Annotated[str, Meta(max_length=200)]


class NewJobIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A job to be stored. What is left out is as the type's handler declares it."""

    type: Annotated[str, Meta(min_length=1, max_length=200)]
    payload: dict[str, Any] = {}
    queue: Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=-32_767, le=32_767)] | UnsetType = UNSET
    tenant: Name | UnsetType = UNSET
    subject: Name | UnsetType = UNSET
    max_attempts: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET
    delay: Annotated[float, Meta(ge=0, le=10**10)] | UnsetType = UNSET
    run_at: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    dedupe: Annotated[str, Meta(min_length=1)] | bool | UnsetType = UNSET

    def options(self) -> dict[str, Any]:
        """What was said beside the type and the payload."""
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("type", "payload")}
        return {name: value for name, value in given.items() if value is not UNSET}


class ChangesIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a clone has of its own."""

    payload: dict[str, Any] | UnsetType = UNSET


class TickIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How much one pass may do."""

    max_jobs: Annotated[int, Meta(ge=1, le=10_000)] = 100
    max_seconds: Annotated[float, Meta(gt=0, le=900)] = 10.0


class Jobs(msgspec.Struct, kw_only=True):
    """Several jobs."""

    items: list[Job]


class Attempts(msgspec.Struct, kw_only=True):
    """The unsuccessful attempts of a job, oldest first."""

    items: list[Attempt]


class Rest(msgspec.Struct, kw_only=True):
    """The groups that are not listed: how many, and with how many jobs together."""

    groups: int
    count: int


class Stats(msgspec.Struct, kw_only=True):
    """How many jobs there are, grouped as was asked for: the largest groups."""

    items: list[dict[str, Any]]
    other: Rest
    exact: bool
    """False if only the newest jobs were counted, because it would have taken too long."""
    as_of: datetime


class Workers(msgspec.Struct, kw_only=True):
    """Who works, oldest first."""

    items: list[WorkerOut]


LaneOut = msgspec.defstruct(
    "LaneOut",
    [
        ("queue", str),
        ("type", str),
        *((name, int) for name in STATE_NAMES),
        ("limit", int | None),
        ("oldest_due", datetime | None),
        ("next_due", datetime | None),
        ("exact", bool),
    ],
    kw_only=True,
    namespace={"__doc__": "Jobs of one type in one queue."},
    module=__name__,
)


class Lanes(msgspec.Struct, kw_only=True):
    """By queue and type."""

    items: list[LaneOut]  # type: ignore[valid-type]
