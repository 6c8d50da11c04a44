"""Dedupe: which enqueues are the same job, and what an enqueue does if another job holds its key. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any, Literal, get_args

import msgspec

from treadle import clock
from treadle.clock import Duration, seconds
from treadle.errors import BadOption
from treadle.settings import SHORTEST, checked_seconds

Key = bool | str | Callable[..., str]
"""`True`: the type, tenant and payload are the key. A string: the key. A function: it returns the key."""
Mode = Literal["return", "replace", "debounce", "throttle", "reject"]
Until = Literal["ended", "started"]
MODES: tuple[str, ...] = get_args(Mode)
UNTIL: tuple[str, ...] = get_args(Until)

LIMIT = 512
LONGEST = 10**8
"""Seconds: about three years."""
REPLACED_BY = "replaced by "
"""With an id: the error of a job that a newer one has replaced."""
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""No database accepts NUL or a lone surrogate in text."""


@dataclass(frozen=True)
class Dedupe:
    """A dedupe key, and what an enqueue does if another job holds it.

    - "return": it stores nothing, and returns that job.
    - "replace": the new job takes its place. If that job runs, the new one starts when it has ended.
    - "debounce": as replace, and it starts when there was no call for `wait` seconds, at the latest `at_most` seconds
      after the first call.
    - "throttle": one job per `period` seconds. The key outlives the job.
    - "reject": it stores nothing, and raises KeyHeld.

    `until`: a job holds its key until it has "ended", or only until it has "started".
    """

    key: Key
    _: KW_ONLY
    mode: Mode = "return"
    until: Until = "ended"
    wait: Duration | None = None
    at_most: Duration | None = None
    period: Duration | None = None

    def __post_init__(self) -> None:
        if self.key is not True and not callable(self.key):
            checked_key(self.key)
        if self.mode not in MODES:
            raise BadOption("mode", self.mode, f"choose one of {', '.join(MODES)}")
        if self.until not in UNTIL:
            raise BadOption("until", self.until, "a key is held until its job has 'ended', or has 'started'")
        if self.mode == "throttle" and self.until != "ended":
            raise BadOption("until", self.until, "a throttled key is held for its period; leave until out")
        for name, (mode, what) in _TIMES.items():
            given = getattr(self, name)
            if self.mode == mode:
                way_out = f"{what}: more than 0, and at most {LONGEST:g}"
                checked_seconds(name, given, way_out, least=SHORTEST, most=LONGEST)
            elif given is not None:
                raise BadOption(name, given, f"it belongs to mode={mode!r}; leave it out, or choose that mode")
        if self.wait is not None and self.at_most is not None and seconds(self.at_most) < seconds(self.wait):
            raise BadOption("at_most", self.at_most, f"it cannot be less than wait={self.wait}")


_TIMES = {
    "wait": ("debounce", "seconds without a call before the job starts"),
    "at_most": ("debounce", "the most seconds from the first call to the start"),
    "period": ("throttle", "the seconds in which one job is stored"),
}
"""Each with the mode that it belongs to."""


DedupeOption = Key | Dedupe | None
"""What `dedupe=` takes. A key alone is `Dedupe(key)`."""


def make_dedupe_key(type: str, tenant: str | None, payload: Mapping[str, Any]) -> str:
    """`<type>::<tenant or global>::<payload as JSON with sorted keys>`."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"{type}::{tenant or 'global'}::{text}"


def key_for(dedupe: DedupeOption, type: str, tenant: str, payload: Mapping[str, Any]) -> str | None:
    key = dedupe.key if isinstance(dedupe, Dedupe) else dedupe
    if key is None or key is False:
        return None
    if key is True:
        text = make_dedupe_key(type, tenant, payload)
        return text if len(text.encode()) <= LIMIT else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return checked_key(key(**payload) if callable(key) else key)


def checked_key(key: object) -> str:
    if not isinstance(key, str) or not key or _UNSTORABLE.search(key):
        raise BadOption("dedupe", key, "a key is a string that is not empty, or True for the payload itself")
    if len(key.encode()) > LIMIT:
        raise BadOption("dedupe", key, f"a key has at most {LIMIT} bytes; hash a longer one")
    return key


# What a job carries of it, and the decisions of an enqueue that finds its key taken


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of a `Dedupe` but its key, as it is stored with the job. Times are microseconds."""

    mode: Mode = "return"
    until: Until = "ended"
    wait: int = 0
    at_most: int = 0
    period: int = 0

    @property
    def replaces(self) -> bool:
        """Whether the newest job wins, and not the one that holds the key."""
        return self.mode in ("replace", "debounce")


PLAIN = Rule()
_decode_rule = msgspec.json.Decoder(Rule).decode


def rule_text(dedupe: DedupeOption) -> str | None:
    """The rule as it is stored; None for a key alone."""
    if not isinstance(dedupe, Dedupe):
        return None
    times = {name: clock.seconds(getattr(dedupe, name) or 0) for name in _TIMES}
    rule = Rule(mode=dedupe.mode, until=dedupe.until, **times)
    return None if rule == PLAIN else msgspec.json.encode(rule).decode()


def read_rule(text: str | None) -> Rule:
    """The rule of a stored job. One that was broken by hand is the plain one."""
    try:
        return _decode_rule(text) if text else PLAIN
    except (msgspec.MsgspecError, UnicodeError):
        return PLAIN


class Place(StrEnum):
    """Where the holder of a key is."""

    FRESH = "fresh"
    """It waits, and has never been started."""
    WAITING = "waiting"
    """It waits again: for a retry, after a snooze."""
    RUNNING = "running"
    NOWHERE = "nowhere"
    """Its row was deleted by hand."""
    ENDED = "ended"
    GONE = "gone"
    """There is no such job."""


class KeyState(msgspec.Struct, frozen=True):
    """A key that was taken, as one look finds it."""

    holder: str
    until_started: int
    since: int | None
    """The first call of the debounce that the waiting job belongs to."""
    expires_at: int | None
    """For a throttled key: until when it is held, whatever happens to its job."""
    successor: str | None
    """The job that starts when the holder has ended."""
    place: Place

    @property
    def is_overdue(self) -> bool:
        """Whether its successor was not told that the holder is gone: rows were deleted by hand."""
        return self.successor is not None and self.place in (Place.ENDED, Place.GONE)

    def is_free(self, now: int) -> bool:
        if self.successor is not None or self.place is Place.GONE:
            return self.successor is None
        if self.expires_at is not None:
            return self.expires_at <= now
        return self.place is Place.ENDED or (bool(self.until_started) and self.place is not Place.FRESH)


def due_at(rule: Rule, now: int, since: int | None) -> int:
    """When the debounce of a job is over that was first called `since`."""
    return max(now, min(now + rule.wait, (now if since is None else since) + rule.at_most))
