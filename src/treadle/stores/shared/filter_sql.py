"""A filter as conditions in SQL. Every name in them is ours; every value is a parameter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from treadle import clock, codec
from treadle.filters import Filter, Moment, Prefix, Text
from treadle.job import STATE_NAMES, Status
from treadle.stores.transaction import Transaction

Term = tuple[str, dict[str, Any]]
"""A condition, and its parameters."""

# Every list has j (the job), r (waiting), l (leased) and f (finished), and one of the last three has the row.
_WAITING = "f.status IS NULL AND l.id IS NULL"
_PENDING = f"{_WAITING} AND coalesce(r.parked, '') <> 'wait'"
_IS = {
    "pending": _PENDING,
    "blocked": f"{_WAITING} AND r.parked = 'wait'",
    "queued": f"{_PENDING} AND coalesce(r.run_at, 0) <= :now",
    "scheduled": f"{_PENDING} AND r.run_at > :now AND r.attempts = 0",
    "retrying": f"{_PENDING} AND r.run_at > :now AND r.attempts > 0",
    "processing": "f.status IS NULL AND l.id IS NOT NULL",
}
_WHEN = {name: f"WHEN {is_so} THEN '{name}'" for name, is_so in _IS.items()}
STATE = f"CASE {' '.join(_WHEN[name] for name in STATE_NAMES if name in _WHEN)} ELSE f.status END"
STATUS = f"CASE {' '.join(_WHEN[name] for name in Status if name in _WHEN)} ELSE f.status END"
_ATTEMPTS = "coalesce(f.attempts, l.attempt, r.attempts, 0)"
_WORKER = "coalesce(l.worker, f.worker, '')"
_PLAIN = re.compile(r"[\w .,:@/+-]+", re.ASCII)
"""Text that a payload contains literally. To search for it first is twice as fast as to parse all JSON."""


def where(terms: Iterable[Term]) -> Term:
    """All of them."""
    texts, parameters = ["true"], {}
    for text, values in terms:
        texts.append(text)
        parameters.update(values)
    return " AND ".join(texts), parameters


def conditions(tx: Transaction, filter: Filter, at: str) -> dict[str, Term]:
    """What has to hold, field by field. `at`: the table of the list that is read in order."""
    found: dict[str, Term] = {}
    if filter.statuses:
        texts = [_IS.get(state, f"f.status = '{state}'") for state in filter.statuses]
        found["statuses"] = _any(texts), {"now": tx.now} if any(":now" in text for text in texts) else {}
    named = {"types": f"{at}.type", "queues": f"{at}.queue", "tenants": f"{at}.tenant", "subjects": "j.subject"}
    named |= {"schedules": "j.schedule", "batches": "j.batch"}
    for field, column in named.items():
        if values := getattr(filter, field):
            found[field] = _named(column, field, values)
    if filter.workers:
        found["workers"] = _worker(tx, filter.workers)
    if filter.ids:
        names = {f"id{i}": id for i, id in enumerate(filter.ids)}
        found["ids"] = f"{at}.id IN ({_listed(names)})", names
    if filter.attempts:
        found["attempts"] = " AND ".join(_any(f"{_ATTEMPTS} {how} {n}" for how, n in t) for t in filter.attempts), {}
    found.update(_errors(tx, filter))
    for i, (path, values) in enumerate(filter.payload):
        found[f"payload{i}"] = _payload(tx, i, path, values)
    for field, how in (("since", ">="), ("until", "<")):
        if (moment := getattr(filter, field)) is not None:
            found[field] = f"j.created_at {how} :{field}", {field: at_moment(tx, moment)}
    return found


def at_moment(tx: Transaction, moment: Moment) -> int:
    """The moment in microseconds, by the database's clock if it is given as seconds ago."""
    return clock.from_datetime(moment) if isinstance(moment, datetime) else tx.now - clock.seconds(moment)


def _any(texts: Iterable[str]) -> str:
    return f"({' OR '.join(f'({text})' for text in texts)})"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f":{name}" for name in names)


def _named(expression: str, name: str, values: Sequence[Text]) -> Term:
    texts, parameters = [], {}
    for i, value in enumerate(values):
        if isinstance(value, Prefix):
            texts.append(f"substr({expression}, 1, {len(value.start)}) = :{name}{i}")
            parameters[f"{name}{i}"] = value.start
        else:
            texts.append(f"{expression} = :{name}{i}")
            parameters[f"{name}{i}"] = value
    return (texts[0] if len(texts) == 1 else _any(texts)), parameters


def _worker(tx: Transaction, values: Sequence[Text]) -> Term:
    """By its id or, while it lives, by its name."""
    by_id, parameters = _named(_WORKER, "worker", values)
    by_name, _ = _named("w.name", "worker", values)
    return f"({by_id} OR {_WORKER} IN (SELECT w.id FROM {tx.sql.TABLES['w']} w WHERE {by_name}))", parameters


def _errors(tx: Transaction, filter: Filter) -> dict[str, Term]:
    found: dict[str, Term] = {}
    has = tx.sql.ERROR_SHOWS if filter.markers else tx.sql.ERROR_HAS
    markers = {"markers": codec.as_json(filter.markers)} if filter.markers else {}
    for i, texts in enumerate(filter.errors):
        names = {f"error{i}_{n}": text for n, text in enumerate(texts)}
        found[f"errors{i}"] = _any(has.format(text=name) for name in names), {**names, **markers}
    return found


def _payload(tx: Transaction, number: int, path: str, values: Sequence[str]) -> Term:
    parameters: dict[str, Any] = {f"value{number}_{n}": value for n, value in enumerate(values)}
    listed = _listed(list(parameters))
    texts = []
    for n, way in enumerate(tx.sql.paths(path.split("."))):
        name = f"path{number}_{n}"
        parameters[name] = way
        texts += [f"{there.format(path=name)} IN ({listed})" for there in tx.sql.AT_PATH]
    if not all(map(_PLAIN.fullmatch, values)):
        return _any(texts), parameters
    somewhere = _any(tx.sql.PAYLOAD_HAS.format(text=f"value{number}_{n}") for n in range(len(values)))
    return f"{somewhere} AND {_any(texts)}", parameters
