"""Limits: how many jobs run at once and how many start per time, over all or for each key. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from treadle.clock import SECOND, Duration
from treadle.codec import as_json
from treadle.errors import BadOption
from treadle.settings import at_least_one, checked_name, checked_seconds
from treadle.units import parse_duration

OF_TYPE = "type:"
"""How the name of the limit begins that `concurrency=` of a type is."""
MOST_KEY = 200
"""Characters of a key. What is longer is cut off, so that jobs share a key rather than escape it."""
UNLIMITED = 1 << 31
PARKED = "limit:"
"""How `ready.parked` begins for a job whose key has no free place: 'limit:NAME', the character 31, and the key."""
_NANO = 1_000
"""A bucket is kept in nanoseconds: a thousand per microsecond of the clock."""


class Rate(msgspec.Struct, frozen=True):
    """At most `count` starts in `per` seconds, evenly spread. After a quiet time, `burst` may start at once."""

    count: int
    per: float = 1.0
    burst: int = 0
    """0: a tenth of `count`, and at least 1."""

    if TYPE_CHECKING:  # a timedelta becomes seconds

        def __init__(self, count: int, per: Duration = 1.0, burst: int = 0) -> None: ...

    def __post_init__(self) -> None:
        at_least_one("count", self.count)
        way_out = "seconds in which `count` jobs may start, or a timedelta"
        per = checked_seconds("per", self.per, way_out, least=0.001, most=10**8)
        if self.count / per > 100_000:
            raise BadOption("rate", f"{self.count} in {per:g} s", "use at most 100,000 starts per second")
        msgspec.structs.force_setattr(self, "per", per)
        msgspec.structs.force_setattr(self, "burst", at_least_one("burst", self.burst or max(1, self.count // 10)))

    def __str__(self) -> str:
        return f"{self.count:,} in {self.per:g} s, burst {self.burst:,}"

    # A token bucket as one number: `full_at`, the nanosecond at which all of `burst` may start again.

    @property
    def _interval(self) -> int:
        return math.ceil(self.per * SECOND * _NANO / self.count)

    def tokens(self, full_at: int, now: int) -> int:
        return max(0, self.burst + (min(0, now * _NANO - full_at) // self._interval))

    def spend(self, full_at: int, now: int, starts: int) -> int:
        """The bucket after that many starts. A negative number gives tokens back."""
        return max(full_at, now * _NANO) + starts * self._interval

    def next_at(self, full_at: int, now: int) -> int:
        """The microsecond at which another one may start."""
        return max(now, -(((self.burst - 1) * self._interval - full_at) // _NANO))


class Limit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named limit, for one type or shared by several: of jobs at once, of starts per time, or of both."""

    name: str
    concurrency: int | None = None
    rate: Rate | None = None
    per: str | None = None
    """What it is counted by: "tenant", "subject" or a path such as "payload.account_id". None: all jobs together."""

    def __post_init__(self) -> None:
        checked_limit_name(self.name)
        checked_bounds(self.concurrency, self.rate)
        if self.per not in (None, "tenant", "subject") and not _is_path(self.per):
            raise BadOption("per", self.per, 'use "tenant", "subject", or a path such as "payload.account_id"')


def _is_path(per: Any) -> bool:
    """Names of members, from the payload inwards. (A number is an index in one database, and a name in another.)"""
    payload, *names = per.split(".") if isinstance(per, str) else [""]
    fits = all(0 < len(name) <= 100 and not name.isdigit() and not {'"', "\0"} & set(name) for name in names)
    return payload == "payload" and 0 < len(names) <= 8 and fits


def checked_limit_name(name: Any) -> str:
    if not checked_name("name", name) or not name.isprintable():
        raise BadOption("name", name, "use a name of printable characters")
    return str(name)


def checked_bounds(concurrency: Any, rate: Any) -> None:
    if concurrency is None and rate is None:
        raise BadOption("concurrency", concurrency, "pass concurrency=, rate=Rate(…), or both")
    if concurrency is not None:
        at_least_one("concurrency", concurrency)
    if rate is not None and not isinstance(rate, Rate):
        raise BadOption("rate", rate, "a Rate, such as Rate(500, per=60)")


def checked_limits(limits: Any) -> tuple[Limit, ...]:
    if isinstance(limits, str | Limit) or not isinstance(limits, Iterable):
        raise BadOption("limits", limits, 'pass a list, such as [Limit("openai", concurrency=20)]')
    found = tuple(limits)
    for limit in found:
        if not isinstance(limit, Limit):
            raise BadOption("limits", limit, 'each is a Limit, such as Limit("openai", concurrency=20)')
        if limit.name.startswith(OF_TYPE):
            raise BadOption(
                "limits", limit.name, f"{OF_TYPE}NAME is what concurrency= of a type makes; use another name"
            )
    if len({limit.name for limit in found}) < len(found):
        raise BadOption("limits", [limit.name for limit in found], "name each limit once")
    return found


# What is in force

Bounds = tuple[int | None, Rate | None]
"""How many at once, and how many per time."""
Key = tuple[str, str]
"""The name of a limit, and the value that it is counted by; '' for one without `per`, and where there is no value."""


class LimitChange(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody set at run time, for one key or, if that is '', for all others. None: as the code says."""

    name: str
    key: str = ""
    concurrency: int | None = None
    rate: Rate | None = None
    by: str = ""
    at: datetime | None = None


class LimitState(msgspec.Struct, frozen=True, kw_only=True):
    """One limit, or one key of it that somebody has changed or a handler holds back, and how much of it is used."""

    name: str
    key: str = ""
    """'': the limit itself."""
    per: str | None = None
    types: tuple[str, ...] = ()
    """The types that it holds for."""
    concurrency: int | None = None
    rate: Rate | None = None
    running: int = 0
    """Jobs that run under it: of this key, or of all keys."""
    declared: Limit | None = None
    """What the code says. None: no code declares it."""
    changed_by: str | None = None
    """Who set it at run time; None: it is as the code says."""
    changed_at: datetime | None = None
    held_until: datetime | None = None
    """Nothing starts before: a handler raised RateLimited. `unset` lets it go."""

    over: int = 0
    """How many run beyond it: it was lowered, and that stops nobody."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "over", max(0, -(self.free or 0)))

    @property
    def free(self) -> int | None:
        """How many more may run at once. None: it has no concurrency, or each of its keys has its own."""
        of_keys = self.per is not None and not self.key
        return None if of_keys or self.concurrency is None else self.concurrency - self.running

    def __str__(self) -> str:
        """`'openai' for tenant='acme'`: a key that is a secret can be redacted."""
        return f"{self.name!r} for {self.per or 'key'}={self.key!r}" if self.key else repr(self.name)

    @property
    def bounds(self) -> str:
        """`50 at once, 500 in 60 s, burst 50`"""
        concurrency = "" if self.concurrency is None else f"{self.concurrency:,} at once"
        return ", ".join(text for text in (concurrency, str(self.rate or "")) if text)


class Limits:
    """All limits that are in force: what the types declare, the newest declaration first, and what people changed."""

    def __init__(
        self, declared: Mapping[str, Sequence[Limit]] | None = None, changes: Iterable[LimitChange] = ()
    ) -> None:
        declared = declared or {}
        self._changes = {(change.name, change.key): change for change in changes}
        self.by_name: dict[str, Limit] = {}
        for limits in declared.values():
            for limit in limits:
                self.by_name.setdefault(limit.name, limit)
        self.types: dict[str, tuple[str, ...]] = {
            type: tuple(x.name for x in limits) for type, limits in declared.items()
        }
        """The names of the limits of each limited type."""
        names = self.types.items()
        self.whole = {type: found for type, of in names if (found := tuple(n for n in of if not self._per(n)))}
        """... without a key: they hold for all jobs of a type."""
        self.whole_keys = {type: tuple((name, "") for name in found) for type, found in self.whole.items()}
        self.counted: dict[str, tuple[Key, ...]] = {
            type: tuple(key for key in self.whole_keys.get(type, ()) if not key[0].startswith(OF_TYPE))
            for type in declared
        }
        """... under which keys its jobs run, apart from their own."""
        self.keyed = {type: found for type, of in names if (found := tuple(n for n in of if self._per(n)))}
        """... with a key."""
        self._pers = {type: [(name, self._per(name) or "") for name in found] for type, found in self.keyed.items()}
        changed = {name for name, _ in self._changes}
        self._as_declared = {name: (x.concurrency, x.rate) for name, x in self.by_name.items() if name not in changed}

    def _per(self, name: str) -> str | None:
        return self.by_name[name].per

    def alike(self, types: Iterable[str]) -> list[str]:
        """The types that share a limit without a key with one of these."""
        if not self.whole:
            return []
        names = {name for type in types for name in self.whole.get(type, ())}
        return [type for type, of in self.whole.items() if not names.isdisjoint(of)]

    def paths(self, types: Iterable[str]) -> list[str]:
        """The paths into the payload that the keys of these types need."""
        pers = {self._per(name) or "" for type in types for name in self.keyed.get(type, ())}
        return sorted(per for per in pers if per.startswith("payload."))

    def by_tenant(self, types: Iterable[str]) -> bool:
        """Whether the keys of these types need nothing of a job but its tenant."""
        return {self._per(name) for type in types for name in self.keyed.get(type, ())} == {"tenant"}

    def keys(self, type: str, tenant: str, subject: str, values: Mapping[str, object]) -> tuple[Key, ...]:
        """The keys of one job. `values`: what its payload has at each path."""
        found = []
        for name, per in self._pers.get(type, ()):
            value = tenant if per == "tenant" else subject if per == "subject" else key_of(values.get(per))
            found.append((name, value[:MOST_KEY]))
        return tuple(found)

    def bounds(self, key: Key) -> Bounds:
        declared = self._as_declared.get(key[0])
        return self._changed_bounds(key) if declared is None else declared

    def _changed_bounds(self, key: Key) -> Bounds:
        limit = self.by_name.get(key[0])
        concurrency, rate = (limit.concurrency, limit.rate) if limit else (None, None)
        for change in (self._changes.get((key[0], "")), self._changes.get(key)):
            if change is not None:
                concurrency = concurrency if change.concurrency is None else change.concurrency
                rate = rate if change.rate is None else change.rate
        return concurrency, rate

    def of_type(self, type: str) -> int | None:
        """How many jobs of a type may run at once, whatever its other limits."""
        return self.bounds((f"{OF_TYPE}{type}", ""))[0]


class KeyUse(NamedTuple):
    """How much of a key is used."""

    running: int = 0
    full_at: int = 0
    """Of its bucket."""
    held_until: int = 0
    """Nothing starts before: somebody was told to come back then."""
    parked: bool = False
    """Whether jobs are parked for it."""
    bucket: int = 0
    """The row of its bucket."""

    def places(self, bounds: Bounds, now: int) -> int:
        concurrency, rate = bounds
        if self.held_until > now:
            return 0
        free = UNLIMITED if concurrency is None else max(0, concurrency - self.running)
        return free if rate is None else min(free, rate.tokens(self.full_at, now))

    def next_at(self, bounds: Bounds, now: int) -> int | None:
        """When time alone makes the next place free. None: a job has to end first, or there is one."""
        concurrency, rate = bounds
        if concurrency is not None and self.running >= concurrency:
            return None
        at = max(self.held_until, rate.next_at(self.full_at, now) if rate else 0)
        return at if at > now else None


UNUSED = KeyUse()


class FullLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that keeps a job from starting."""

    name: str
    per: str | None = None
    key: str = ""
    concurrency: int | None = None
    rate: Rate | None = None
    running: int = 0
    holders: dict[str, int] = {}
    """How many of the jobs that run under it each worker has; '' for those claimed by hand."""
    jobs: tuple[str, ...] = ()
    """Some of them."""
    next_at: int | None = None
    """When its rate lets the next one start."""
    held_until: int | None = None
    types: tuple[str, ...] = ()
    """The types that it holds for."""
    oldest: int | None = None
    """Since when jobs are due that are parked for its key."""

    @property
    def is_full(self) -> bool:
        return self.concurrency is not None and self.running >= self.concurrency

    @property
    def set_command(self) -> str:
        """What raises it, on the command line. It does not show the key, which may be a secret."""
        return f"{set_command(self.name)}, with {'' if self.per is None else '--key KEY '}"

    @property
    def unset_command(self) -> str:
        """What lets it go if it is held back."""
        return f"treadle limits unset {shlex.quote(self.name)}{'' if self.per is None else ' --key KEY'}"


def parse_rate(text: str, burst: int = 0) -> Rate:
    """A rate as people write it: `500/60s`."""
    count, _, time = text.partition("/")
    seconds = parse_duration(time)
    if not count.isascii() or not count.isdigit() or len(count) > 9 or seconds is None:
        raise BadOption("rate", text, "write a count and a time, such as 500/60s or 10/1h")
    return Rate(int(count), per=seconds, burst=burst)


def set_command(name: str) -> str:
    return f"treadle limits set {shlex.quote(name)}"


def key_of(value: object) -> str:
    """The key that a value in a payload is: a text as it is, a number as JSON has it, else ''."""
    if isinstance(value, str):
        return value
    return as_json(value) if isinstance(value, int | float) else ""


def parked_for(key: Key) -> str:
    """What a row is parked for whose key has no free place."""
    return f"{PARKED}{key[0]}\x1f{key[1]}"


def key_parked_for(parked: str) -> Key:
    name, _, key = parked.removeprefix(PARKED).partition("\x1f")
    return name, key
