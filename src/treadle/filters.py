"""Filters: one small language that selects jobs, in the library, the CLI, the HTTP API and the dashboard.

    status:failed,retrying type:send_* tenant:acme payload.user_id:42 attempt:>3 error:"refused" since:1h

All terms must match. A comma means "or". `send_*` is a prefix. Inside quotes, spaces, commas and stars are plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from treadle import units
from treadle.errors import BadFilter
from treadle.ids import is_id
from treadle.job import WAITING, Status

LONGEST = 2_000
MOST_VALUES = 50
DEEPEST = 10
MOST_SEARCHED = 500
"""Characters of an error that are searched for a caller who does not see all of it."""
MOST_NUMBERS = 3
"""Numbers in a path. Each may be a name or an index, so each doubles the places to look at."""


class Prefix(NamedTuple):
    """Matches every text that starts with `start`."""

    start: str


class Compared(NamedTuple):
    """`>3`"""

    how: str
    number: int


Text = str | Prefix
Moment = datetime | float
"""A moment, or a number of seconds ago."""

STATUSES = (*(status.value for status in Status), *WAITING)
"""What `status:` may name: a status, or a state of pending jobs."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects jobs. A job matches if it matches every given field, by any of the field's values. `since` and `until`
    refer to when the job was created."""

    statuses: tuple[str, ...] = ()
    types: tuple[Text, ...] = ()
    queues: tuple[Text, ...] = ()
    tenants: tuple[Text, ...] = ()
    subjects: tuple[Text, ...] = ()
    schedules: tuple[Text, ...] = ()
    batches: tuple[Text, ...] = ()
    workers: tuple[Text, ...] = ()
    ids: tuple[str, ...] = ()
    attempts: tuple[tuple[Compared, ...], ...] = ()
    """Every term must match, by any of its comparisons."""
    errors: tuple[tuple[str, ...], ...] = ()
    payload: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Dotted paths, each with the values that match there."""
    since: Moment | None = None
    until: Moment | None = None
    markers: tuple[str, ...] = ()
    """Texts that may be part of a secret's name. If there are any, no text in an error is found that may be part of a
    secret. Not a term: `views.visible` sets it."""

    def terms(self) -> list[tuple[str, str]]:
        """Each term as its key and its values, as text."""
        named = {key: getattr(self, field) for key, field in NAMED.items()}
        found = [(key, ",".join(map(_shown, values))) for key, values in named.items() if values]
        found += [("attempt", ",".join(map(_comparison, term))) for term in self.attempts]
        found += [("error", ",".join(map(_quoted, term))) for term in self.errors]
        found += [(f"payload.{path}", ",".join(map(_quoted, values))) for path, values in self.payload]
        return found + [(key, _moment(at)) for key in ("since", "until") if (at := getattr(self, key)) is not None]

    def __str__(self) -> str:
        return " ".join(f"{key}:{values}" for key, values in self.terms())

    def __repr__(self) -> str:
        return f"Filter({str(self)!r})"

    def replace(self, **fields: Any) -> Filter:
        return msgspec.structs.replace(self, **fields)


NAMED = {
    "status": "statuses",
    **{key: f"{key}s" for key in ("type", "queue", "tenant", "subject", "schedule")},
    "batch": "batches",
    **{key: f"{key}s" for key in ("worker", "id")},
}
"""Keys whose values are names, and their fields."""
KEYS = (*NAMED, "attempt", "error", "payload.…", "since", "until")
EVERYTHING = Filter()

_TERM = re.compile(r'\s*+((?:[^\s"]++|"(?:[^"\\]++|\\.)*+")++)')
_VALUE = re.compile(r'"((?:[^"\\]++|\\.)*+)"(\*)?|([^,"]++)')
_COMPARED = re.compile(r"(>=|<=|>|<|=)?([0-9]{1,9})")
_BROKEN = re.compile("[\ud800-\udfff]")
"""What Python makes of bytes in a command's argument that are not UTF-8."""


def parse(text: str) -> Filter:
    """Parse a filter. Raises BadFilter, which says what is wrong and what is possible."""
    if len(text) > LONGEST:
        raise BadFilter(text[:40] + "…", f"a filter has at most {LONGEST:,} characters")
    if "\0" in text:
        raise BadFilter(text, "remove the NUL character: no stored name or payload contains one")
    if _BROKEN.search(text):
        raise BadFilter(text, "it is not valid UTF-8; write it as UTF-8")
    return read_back(text)


def read_back(text: str) -> Filter:
    """The filter that `str` wrote, which may be longer than what a caller may write."""
    found = EVERYTHING
    for term in _terms(text):
        found = _with(found, term)
    return found


def to_filter(wanted: str | Filter | None) -> Filter:
    """A filter from text, from a filter, or from None, which means all jobs."""
    if isinstance(wanted, Filter):
        return wanted
    given: Any = wanted
    if not isinstance(given, str | None):
        raise BadFilter(given, "write it as a text, such as 'status:failed'")
    return parse(wanted) if wanted else EVERYTHING


def _terms(text: str) -> Iterator[str]:
    at = 0
    while text[at:].strip():
        found = _TERM.match(text, at)
        if found is None or text.startswith('"', found.end()):
            raise BadFilter(text[at:].strip(), 'a quote is not closed; write error:"connection refused"')
        at = found.end()
        yield found[1]


def _with(wanted: Filter, term: str) -> Filter:
    key, colon, rest = term.partition(":")
    if not colon:
        if is_id(term):
            return wanted.replace(ids=(*wanted.ids, term))
        raise BadFilter(term, f"write key:value, for example type:{term.strip(chr(34))}; keys are {', '.join(KEYS)}")
    values = list(_values(term, rest))
    texts = tuple(text for text, _ in values)
    if key.startswith("payload."):
        return wanted.replace(payload=(*wanted.payload, (_path(term, key), texts)))
    if key == "attempt":
        return wanted.replace(attempts=(*wanted.attempts, tuple(_compared(term, text) for text in texts)))
    if key == "error":
        return wanted.replace(errors=(*wanted.errors, texts))
    if key in ("since", "until"):
        return _once(wanted, term, key, _read_moment(term, rest))
    if key in NAMED:
        return _once(wanted, term, NAMED[key], tuple(_named(term, key, value) for value in values))
    raise BadFilter(term, "", key=key, known=KEYS)


def _once(wanted: Filter, term: str, field: str, value: Any) -> Filter:
    if getattr(wanted, field) not in (None, ()):
        key = term.partition(":")[0]
        raise BadFilter(term, f'{key} is given twice; use a comma for "or", as in status:failed,pending')
    return wanted.replace(**{field: value})


_Value = tuple[str, str | None]
"""The text of a value, and the part before a star that is not quoted."""


def _values(term: str, text: str) -> Iterator[_Value]:
    at, number = 0, 0
    while True:
        found = _VALUE.match(text, at)
        if found is None:
            raise BadFilter(term, 'a value is missing; write the empty one as ""')
        yield _value(*found.groups())
        number += 1
        at = found.end()
        if number > MOST_VALUES:
            raise BadFilter(term[:40] + "…", f"at most {MOST_VALUES} values")
        if at == len(text):
            return
        if text[at] != ",":
            raise BadFilter(term, "put a comma between two values")
        at += 1


def _value(quoted: str | None, star: str | None, plain: str | None) -> _Value:
    if plain is not None:
        return plain, plain.partition("*")[0] if "*" in plain else None
    text = re.sub(r"\\(.)", r"\1", quoted or "", flags=re.DOTALL)
    return (f"{text}*", text) if star else (text, None)


def _named(term: str, key: str, value: _Value) -> Text:
    text, start = value
    if key == "status" and text not in STATUSES:
        raise BadFilter(term, "", key=text, known=STATUSES)
    if key == "id" and not is_id(text):
        raise BadFilter(term, "write a job id, such as 01970000-0000-7000-8000-000000000000")
    if start is not None and text != f"{start}*":
        raise BadFilter(term, f"a * can only be at the end: {start}*; quote a star that is part of the name")
    return text if start is None else Prefix(start)


def _compared(term: str, text: str) -> Compared:
    found = _COMPARED.fullmatch(text)
    if found is None:
        raise BadFilter(term, "write attempt:3, attempt:>3 or attempt:<=3")
    return Compared(found[1] or "=", int(found[2]))


def _path(term: str, key: str) -> str:
    path = key.removeprefix("payload.")
    parts = path.split(".")
    if not all(parts) or '"' in path or len(parts) > DEEPEST or sum(map(is_index, parts)) > MOST_NUMBERS:
        names = f"at most {DEEPEST} names with dots between them, at most {MOST_NUMBERS} of them numbers"
        raise BadFilter(term, f"write payload.user.id:42, {names}")
    return path


def is_index(part: str) -> bool:
    """Whether a part of a path may be an index of a list: `0` is the first item, `-1` the last."""
    return re.fullmatch("0|-?[1-9][0-9]{0,8}", part) is not None


def _read_moment(term: str, text: str) -> Moment:
    text = text.strip('"')
    ago = units.parse_duration(text)
    if ago is not None and ago < 10**10:
        return round(ago, 6)  # no store keeps finer times
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        way_out = "write since:1h, since:7d, or a time: since:2026-11-01, since:2026-11-01T08:30Z"
        raise BadFilter(term, way_out) from None


def _shown(value: Text) -> str:
    return f"{_quoted(value.start)}*" if isinstance(value, Prefix) else _quoted(value)


def _quoted(text: str) -> str:
    if text and not re.search(r'[\s",*\\]', text):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _comparison(compared: Compared) -> str:
    return f"{'' if compared.how == '=' else compared.how}{compared.number}"


def _moment(at: Moment) -> str:
    if isinstance(at, datetime):
        return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    for unit, seconds in (("d", 86_400), ("h", 3600), ("m", 60)):
        if at and at % seconds == 0:
            return f"{at // seconds:.0f}{unit}"
    return f"{at:.6f}".rstrip("0").rstrip(".") + "s"


def matches(value: str, wanted: Iterable[Text]) -> bool:
    """Whether a name matches one of these. If there are none, every name matches."""
    wanted = tuple(wanted)
    return not wanted or any(value.startswith(w.start) if isinstance(w, Prefix) else value == w for w in wanted)
