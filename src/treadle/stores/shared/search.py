"""Finding jobs by a filter, at a bounded cost.

A list reads the table, or the index, that has just the rows it needs, newest first. Without such an index, it searches
a fixed number of the newest rows: the page says so, and its cursor continues there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from treadle.clock import SECOND
from treadle.filters import EVERYTHING, Filter
from treadle.ids import first_id_of
from treadle.job import FINAL, STATES, WAITING, Job, Page, Status
from treadle.stores.rows import JobCounts
from treadle.stores.shared import read, stats
from treadle.stores.shared.filter_sql import STATE, STATUS, Term, at_moment, conditions, where
from treadle.stores.transaction import Transaction

SEARCHED = 20_000
"""How many rows are read for what no index serves."""
FIRST_LOOK = 5_000
"""Most pages are full after these."""
SKEW = 3600 * SECOND
"""An id has the time of the host that made it, which may be wrong by this much."""
EVERY_QUEUE = 1 << 31
"""More queues and types than there can be."""
GroupCount = tuple[dict[str, Any], int]
"""The columns by which jobs are counted, and a count."""


class Source(NamedTuple):
    """Where to read jobs from, in the order of their ids."""

    rows: str
    """FROM …"""
    at: str
    """The table in it whose ids are in order: j, r, l or f."""
    served: list[Term]
    """What its index is for."""
    others: list[Term]
    """What has to be checked row by row."""


def jobs(tx: Transaction, filter: Filter, limit: int, before: str | None = None) -> Page:
    """Newest first. One statement per status asked for, each starting from the table that has just those rows."""
    found: dict[str, Job] = {}
    ends: list[str] = []
    with tx.snapshot():  # a job that moves between two reads is neither missed nor seen twice
        for source in _sources(tx, filter):
            some, end = _newest(tx, source, limit + 1, before)
            found.update((job.id, job) for job in some)
            ends += [end] if end else []
    end = max(ends, default=None)  # what is below that is not known
    newest = sorted((id for id in found if end is None or id >= end), reverse=True)
    if len(newest) > limit:
        return Page([found[id] for id in newest[:limit]], newest[limit - 1])
    return Page([found[id] for id in newest], end, None if end is None else SEARCHED)


def _newest(tx: Transaction, source: Source, limit: int, before: str | None) -> tuple[list[Job], str | None]:
    """The first jobs of a source, and how far down it was searched, if there is more below."""
    if not source.others:
        return _between(tx, source, limit, before, None), None
    found: list[Job] = []
    for rows in (FIRST_LOOK, SEARCHED - FIRST_LOOK):
        end = _end(tx, source, before, rows)
        found += _between(tx, source, limit - len(found), before, end)
        if end is None or len(found) >= limit:
            return found, None
        before = end
    return found, before


def _between(tx: Transaction, source: Source, limit: int, before: str | None, end: str | None) -> list[Job]:
    terms, parameters = where([*source.served, *source.others, *_range(source.at, before, end)])
    statement = f"{tx.sql.JOB} {source.rows} WHERE {terms} ORDER BY {source.at}.id DESC LIMIT :limit"
    return [read.to_job(row) for row in tx.execute(statement, {**parameters, "limit": limit})]


def _range(at: str, before: str | None, end: str | None) -> list[Term]:
    terms: list[Term] = [] if before is None else [(f"{at}.id < :before", {"before": before})]
    return terms if end is None else [*terms, (f"{at}.id >= :end", {"end": end})]


def _end(tx: Transaction, source: Source, before: str | None, rows: int) -> str | None:
    """The id of the last of `rows` rows; None if there are no more than that."""
    at = source.at
    terms, parameters = where([*source.served, *_range(at, before, None)])
    statement = f"SELECT {at}.id FROM {tx.sql.TABLES[at]} {at} WHERE {terms} ORDER BY {at}.id DESC LIMIT 2 OFFSET :skip"
    last = tx.execute(statement, {**parameters, "skip": rows - 1}).fetchall()
    return str(last[0][0]) if len(last) > 1 else None


# Where to start


def _sources(tx: Transaction, filter: Filter) -> Iterator[Source]:
    """Each with all that has to hold; no job is in two of them."""
    one = filter.ids or any(map(_is_one, (filter.tenants, filter.subjects, filter.schedules, filter.batches)))
    if one or not filter.statuses:  # the indexes by tenant, subject, schedule, batch are on the jobs themselves
        yield _source(tx, filter, "j", tx.sql.FROM_ALL, [])
        return
    states, any_status = set(filter.statuses), filter.replace(statuses=())
    waiting = () if Status.PENDING in states else tuple(state for state in WAITING if state in states)
    if waiting or Status.PENDING in states:
        pending: list[Term] = [("r.parked <> 'wait'", {})]
        again: list[Term] = [("r.attempts > 0", {})] if waiting == ("retrying",) else []  # an index has just those
        yield _source(tx, filter.replace(statuses=waiting), "r", tx.sql.FROM_PENDING, [*pending, *again])
    if Status.BLOCKED in states:
        yield _source(tx, any_status, "r", tx.sql.FROM_PENDING, [("r.parked = 'wait'", {})])
    if Status.PROCESSING in states:
        yield _source(tx, any_status, "l", tx.sql.FROM_PROCESSING, [])
    for status in FINAL:
        if status in states:
            yield _source(tx, any_status, "f", tx.sql.FROM_FINISHED, _ended(status))


def _source(tx: Transaction, filter: Filter, at: str, rows: str, served: list[Term]) -> Source:
    terms = conditions(tx, filter, at)
    if at == "j":
        served = _by_index(filter, terms)
    if filter.since is not None:
        served = [*served, (f"{at}.id >= :first", {"first": first_id_of(at_moment(tx, filter.since) - SKEW)})]
    if filter.until is not None:
        served = [*served, (f"{at}.id < :last", {"last": first_id_of(at_moment(tx, filter.until) + SKEW)})]
    return Source(rows, at, served, list(terms.values()))


def _by_index(filter: Filter, terms: dict[str, Term]) -> list[Term]:
    """Takes out of `terms` what an index of the jobs serves: it has no rows without a tenant, or without a subject.

    With a tenant, only its jobs count as searched: a reader bound to it learns nothing of other jobs of the subject.
    """
    if filter.ids:
        return [terms.pop("ids")]
    tenant = [terms.pop("tenants")] if _is_one(filter.tenants) and filter.tenants[0] else []
    if _is_one(filter.subjects) and filter.subjects[0]:
        return [terms.pop("subjects"), ("j.subject <> ''", {}), *tenant]
    for field, column in (("schedules", "schedule"), ("batches", "batch")):
        if _is_one(getattr(filter, field)):
            return [terms.pop(field), (f"j.{column} IS NOT NULL", {}), *tenant]
    return [*tenant, ("j.tenant <> ''", {})] if tenant else []


def _is_one(values: Sequence[object]) -> bool:
    return len(values) == 1 and isinstance(values[0], str)


def _ended(status: Status) -> list[Term]:
    terms: list[Term] = [("f.status = :ended", {"ended": status.value})]
    # So that the planner can use the index on the few others.
    return terms if status is Status.COMPLETED else [*terms, ("f.status <> 'completed'", {})]


# How many


def counts(tx: Transaction, by: Sequence[str], filter: Filter = EVERYTHING, most: int | None = None) -> JobCounts:
    """From the tallies if they have the answer. If not, jobs are counted."""
    return _tallied(tx, by, filter) if _is_tallied(by, filter) else count_jobs(tx, by, filter, most)


def count_jobs(tx: Transaction, by: Sequence[str], filter: Filter, most: int | None) -> JobCounts:
    """Jobs are counted, among the newest `most` of each source."""
    if most is None and filter == EVERYTHING and "state" not in by:
        names = ("status", "type", "queue", "tenant", "subject")
        every: list[GroupCount] = [
            (dict(zip(names, row, strict=False)), row[-1]) for row in tx.execute(tx.sql.COUNT_EACH)
        ]
        return JobCounts(_grouped(by, every), True)
    rows: list[GroupCount] = []
    exact = True
    for source in _sources(tx, filter):
        end = None if most is None else _end(tx, source, None, most)
        rows += _counted(tx, source, by, end)
        exact = exact and end is None
    return JobCounts(_grouped(by, rows), exact)


_COLUMNS = {"status": STATUS, "state": STATE, "tenant": "j.tenant", "subject": "j.subject"}


def _counted(tx: Transaction, source: Source, by: Sequence[str], end: str | None) -> list[GroupCount]:
    terms, parameters = where([*source.served, *source.others, *_range(source.at, None, end)])
    columns = [_COLUMNS.get(name, f"{source.at}.{name}") for name in by]
    named = "".join(f"{column} AS c{i}, " for i, column in enumerate(columns))
    group = f" GROUP BY {', '.join(str(i + 1) for i in range(len(by)))}" if by else ""
    statement = f"SELECT {named}count(*) {source.rows} WHERE {terms}{group}"
    needed = {**parameters, "now": tx.now} if ":now" in statement else parameters
    return [(dict(zip(by, row, strict=False)), row[-1]) for row in tx.execute(statement, needed)]


def _is_tallied(by: Sequence[str], filter: Filter) -> bool:
    """Whether only status, type and queue matter."""
    plain = filter.replace(statuses=(), types=(), queues=()) == EVERYTHING
    return plain and {"status", "state", "type", "queue"} >= set(by)


def _tallied(tx: Transaction, by: Sequence[str], filter: Filter) -> JobCounts:
    """Tallies do not say what a pending job waits for: `queue_stats` does."""
    states = set(filter.statuses) or {*Status, *WAITING}
    if "state" in by or (not states.isdisjoint(WAITING) and Status.PENDING not in states):
        return _counted_by_state(tx, by, filter, states)
    texts, parameters = where([*_of_tally(tx, filter), _is_among(states)])
    columns = [*by] or ["status"]
    group = ", ".join(columns)
    found = tx.execute(tx.sql.TALLIED.format(by=f"{group}, ", which=texts, group=group), parameters)
    return JobCounts(_grouped(by, ((dict(zip(columns, row, strict=False)), row[-1]) for row in found)), True)


def _counted_by_state(tx: Transaction, by: Sequence[str], filter: Filter, states: Collection[str]) -> JobCounts:
    queues = EVERY_QUEUE if {"type", "queue"} & set(by) else stats.MOST_QUEUES
    found = stats.queue_stats(tx, where(_of_tally(tx, filter)), queues)
    wanted = [state for state in STATES if state.name in states or state.status in states]
    rows: list[GroupCount] = []
    for row in found:
        names = {"type": row.type, "queue": row.queue}
        rows += [({**names, "status": s.status.value, "state": s.name}, row.counts[s.name]) for s in wanted]
    return JobCounts(_grouped(by, rows), all(row.exact for row in found))


def _of_tally(tx: Transaction, filter: Filter) -> list[Term]:
    return list(conditions(tx, EVERYTHING.replace(types=filter.types, queues=filter.queues), "t").values())


def _is_among(states: Collection[str]) -> Term:
    names = {f"status{i}": status.value for i, status in enumerate(Status) if status in states}
    return f"status IN ({', '.join(f':{name}' for name in names)})", names


def _grouped(by: Sequence[str], rows: Iterable[GroupCount]) -> list[dict[str, Any]]:
    total: Counter[tuple[Any, ...]] = Counter()
    for row, n in rows:
        total[tuple(row[name] for name in by)] += n
    return [{**dict(zip(by, key, strict=True)), "count": n} for key, n in sorted(total.items()) if n]
