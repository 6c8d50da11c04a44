"""Copying a database: the rows of jobs, chunk by chunk, the other tables as a whole, and a source that is closed.

Rows travel as dicts by column, so that databases whose tables differ a little can exchange them. A chunk is written by
one transaction, which first deletes what an earlier copy has of these jobs. So it can be repeated at any time.

Nobody else may change the target: programs that use it already, and SQL. Triggers refuse that while the note that it is
being filled is positive. A transaction of the copy makes it negative, which no other one sees, and positive again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import msgspec

from treadle.codec import as_json
from treadle.errors import TreadleError
from treadle.stores.error_codes import HAS_MOVED, IS_FILLED
from treadle.stores.shared import moved
from treadle.stores.shared.stats import tally
from treadle.stores.shared.store import SQLStore
from treadle.stores.statements.parts import THESE
from treadle.stores.transaction import Transaction

OF_JOBS = ("jobs", "ready", "finished", "attempts", "steps", "waits", "logs")
"""Tables that have rows of a job, by its id."""
OF_TENANTS = ("dedupe", "signals", "arrivals", "batches", "batch_counts", "schedules", "fired", "pauses", "usage")
"""Tables that are copied as a whole, or the part of one tenant."""
OF_ALL = ("types", "limits", "openings", "buckets", "backlog", "audit", "tokens", "requests")
"""Tables that are copied as a whole, and only then."""
USAGE_KEY = ("minute", "type", "queue", "tenant")
CLOSED = (*OF_JOBS, *OF_TENANTS, *OF_ALL, "leases")
CHANGES = ("INSERT", "UPDATE", "DELETE")
BEING_FILLED = (
    f"EXISTS (SELECT 1 FROM treadle.meta WHERE substr(key, 1, {len(moved.FILLED)}) = '{moved.FILLED}' AND value > 0)"
)
CHUNK = 500
"""Jobs in a transaction: on SQLite it takes less than 50 ms."""
ROWS = 2000
"""Rows of other tables in a transaction."""
BYTES = 4 << 20
"""... and bytes of all of them, and of a statement. If one job has more, it is a chunk of its own."""
FIRST = "00000000-0000-0000-0000-000000000000"

Row = Mapping[str, Any]
T = TypeVar("T")


class CannotCopy(TreadleError):
    """A copy that cannot begin, go on or be finished. The message says why, and what to do."""


class Ended(NamedTuple):
    """What says whether a job that has ended is still the same. None of a job that has not ended."""

    status: str
    completed_at: int
    lease: int
    attempts: int


class Place(NamedTuple):
    """Where a job is, and how it is counted."""

    ended: Ended | None
    is_blocked: bool
    type: str
    queue: str

    @property
    def status(self) -> str:
        return self.ended.status if self.ended else "blocked" if self.is_blocked else "pending"


class Tables:
    """The tables of one database."""

    def __init__(self, store: SQLStore[Any], tenant: str | None = None) -> None:
        self.store, self.tenant = store, tenant
        self.url = store.where if "://" in store.where else f"sqlite:///{store.where}"
        """Without a password, so that anybody may see it."""
        self._note: str | None = None
        """What says that we fill this database."""

    def read(self, steps: Any, *args: Any) -> Any:
        return self.store.database.read("other", steps, *args)

    def write(self, steps: Any, *args: Any) -> Any:
        return self.store.database.write("other", steps, *args)

    def _fill(self, steps: Any, *args: Any) -> None:
        """Write what others may not write."""

        def all_steps(tx: Transaction) -> None:
            if self._note and not tx.execute(tx.sql.NEGATE_META, {"key": self._note}).rowcount:
                raise CannotCopy(f"another copy has completed {self.url} in the meantime; it can be used")
            steps(tx, *args)
            if self._note:
                tx.execute(tx.sql.NEGATE_META, {"key": self._note})

        self.write(all_steps)

    @cached_property
    def _all_columns(self) -> dict[str, dict[str, str]]:
        tables = (*OF_JOBS, *OF_TENANTS, *OF_ALL)
        found: dict[str, dict[str, str]] = self.read(
            lambda tx: {table: dict(tx.execute(tx.sql.COLUMNS, {"table": table}).fetchall()) for table in tables}
        )
        return found

    @cached_property
    def columns(self) -> dict[str, dict[str, str]]:
        """The columns of each table, with the types that values are cast to. Not the numbers of rows that the database
        gives by itself."""
        all_columns = self._all_columns.items()
        return {
            table: {name: kind for name, kind in columns.items() if name != "seq"} for table, columns in all_columns
        }

    # Jobs

    def next_ids(self, after: str, limit: int) -> list[str]:
        """The ids of the next jobs, in their order."""
        of_tenant = "" if self.tenant is None else "AND tenant = CAST(:tenant AS text)"
        sql = f"""SELECT id::text FROM treadle.jobs WHERE id > CAST(CAST(:after AS text) AS uuid) {of_tenant}
                   ORDER BY id LIMIT :limit"""
        given = {"after": after, "limit": limit, "tenant": self.tenant}
        return [row[0] for row in self._execute(sql, given)]

    def places(self, after: str, upto: str) -> dict[str, Place]:
        """Where the jobs of a range of ids are."""
        of_tenant = "" if self.tenant is None else "AND j.tenant = CAST(:tenant AS text)"
        sql = f"""
            SELECT j.id::text, f.status, f.completed_at, f.lease, f.attempts, r.parked, j.type, j.queue
              FROM treadle.jobs j
              LEFT JOIN treadle.finished f ON f.id = j.id AND f.tenant = j.tenant
              LEFT JOIN treadle.ready r ON r.id = j.id AND r.tenant = j.tenant
             WHERE j.id > CAST(CAST(:after AS text) AS uuid) AND j.id <= CAST(CAST(:upto AS text) AS uuid) {of_tenant}
        """
        rows = self._execute(sql, {"after": after, "upto": upto, "tenant": self.tenant})
        return {
            row[0]: Place(None if row[1] is None else Ended(*row[1:5]), row[5] == "wait", row[6], row[7])
            for row in rows
        }

    def _execute(self, sql: str, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self.read(lambda tx: tx.execute(tx.sql.translate(sql), given).fetchall())
        return rows

    def parts(self, ids: Collection[str]) -> Iterator[list[str]]:
        """These jobs in parts, the rows of each of which fit into memory and into a statement."""
        size = " + ".join
        parts = (
            f"SELECT id, {size(f'coalesce(length({name}::text), 0)' for name in columns)} AS size"
            f" FROM treadle.{table} WHERE id = {THESE}"
            for table, columns in self.columns.items()
            if table in OF_JOBS
        )
        sql = f"SELECT id::text, sum(size)::bigint FROM ({' UNION ALL '.join(parts)}) parts GROUP BY id"
        sizes = dict(self._execute(sql, {"ids": as_json([*ids])}))
        return in_parts(ids, lambda id: sizes.get(id, 0))

    def rows_of(self, ids: Collection[str]) -> dict[str, list[Row]]:
        """All rows of these jobs, of one moment."""

        def steps(tx: Transaction) -> dict[str, list[Row]]:
            with tx.snapshot():
                return {
                    table: self._select(tx, table, f"WHERE id = {THESE}", {"ids": as_json([*ids])}) for table in OF_JOBS
                }

        found: dict[str, list[Row]] = self.read(steps)
        tenants = {row["id"]: row["tenant"] for row in found["jobs"]}
        return {table: [{"tenant": tenants[row["id"]], **row} for row in rows] for table, rows in found.items()}

    @staticmethod
    def places_of(rows: Mapping[str, Sequence[Row]]) -> dict[str, Place]:
        """`places`, from the rows themselves."""
        ended = {r["id"]: Ended(r["status"], r["completed_at"], r["lease"], r["attempts"]) for r in rows["finished"]}
        blocked = {r["id"] for r in rows["ready"] if r["parked"] == "wait"}
        return {j["id"]: Place(ended.get(j["id"]), j["id"] in blocked, j["type"], j["queue"]) for j in rows["jobs"]}

    def replace(
        self, gone: Mapping[str, Place], rows: Mapping[str, Sequence[Row]], places: Mapping[str, Place]
    ) -> None:
        """In one transaction, delete jobs, and write jobs with all of their rows."""

        def steps(tx: Transaction) -> None:
            for table in OF_JOBS if gone else ():
                tx.execute(
                    tx.sql.translate(f"DELETE FROM treadle.{table} WHERE id = {THESE}"), {"ids": as_json([*gone])}
                )
            for table, written in rows.items():
                self._insert(tx, table, written)
            came = [(place.status, place.type, place.queue, 1) for place in places.values()]
            tally(tx, [*came, *((place.status, place.type, place.queue, -1) for place in gone.values())])

        self._fill(steps)

    # Other tables

    def all_rows(self, table: str) -> list[Row]:
        where = "" if self.tenant is None else "WHERE tenant = CAST(:tenant AS text)"
        order = "ORDER BY seq" if "seq" in self._all_columns[table] else ""
        rows: list[Row] = self.read(lambda tx: self._select(tx, table, f"{where} {order}", {"tenant": self.tenant}))
        return _added_up(rows) if table == "usage" else rows

    def replace_all(self, table: str, rows: Sequence[Row]) -> None:
        """Put these rows in place of those that the table has, of all tenants or of one, in chunks. The first commit is
        the one that deletes: a few rows, such as the pause of a tenant, are always there."""
        where = "" if self.tenant is None else "WHERE tenant = CAST(:tenant AS text)"
        delete = f"DELETE FROM treadle.{table} {where}"

        def steps(tx: Transaction, is_first: bool, part: Sequence[Row]) -> None:
            if is_first:
                tx.execute(tx.sql.translate(delete), {"tenant": self.tenant})
            self._insert(tx, table, part)

        for i, part in enumerate(in_parts(rows, _size, ROWS) if rows else [[]]):
            self._fill(steps, i == 0, part)

    # The number of leases, and notes

    def leases_given(self) -> int:
        return int(self.read(lambda tx: tx.value(tx.sql.LEASES_GIVEN)))

    def raise_leases(self, number: int) -> None:
        """Let the next lease have a higher number."""
        self.write(lambda tx: tx.execute(tx.sql.RAISE_LEASES, {"number": number}))

    def running(self) -> int:
        sql = "SELECT count(*) FROM treadle.leases" + (
            "" if self.tenant is None else " WHERE tenant = CAST(:tenant AS text)"
        )
        return int(self._execute(sql, {"tenant": self.tenant})[0][0])

    def count(self) -> int:
        """How many jobs there are, of all tenants."""
        return int(self.read(lambda tx: tx.value(tx.sql.COUNT_JOBS)))

    # Notes

    def notes(self, *kinds: str) -> list[str]:
        return list(self.read(moved.notes, *kinds))

    def note(self, key: str, at: int) -> None:
        self.write(moved.note, key, at)

    def drop_notes(self, kind: str) -> None:
        self.write(moved.drop_notes, kind)

    def start_filling(self, source: str, at: int) -> None:
        """From this commit on, nobody else changes or opens the database, until it is complete."""
        self._note = f"{moved.FILLED}{source}"

        def steps(tx: Transaction) -> None:
            is_new = self._note not in moved.notes(tx)
            for each in tx.sql.forbid("filled", CLOSED, CHANGES, f"{IS_FILLED}{source}", BEING_FILLED):
                tx.execute(each)
            moved.note(tx, self._note, at)
            moved.drop_notes(tx, moved.COMPLETE)
            if is_new and tx.execute(tx.sql.translate("SELECT 1 FROM treadle.jobs LIMIT 1")).fetchall():
                raise CannotCopy(f"{self.url} has jobs already; name a database without jobs")

        self.write(steps)

    def end_filling(self, source: str, at: int) -> None:
        """Let everybody use the database, which is complete."""

        def steps(tx: Transaction) -> None:
            for each in tx.sql.allow("filled", CLOSED):
                tx.execute(each)
            moved.drop_notes(tx, moved.FILLED)
            moved.note(tx, f"{moved.COMPLETE}{source}", at)

        self.write(steps)

    def close_claims(self, place: str) -> None:
        """From this commit on, nothing is claimed."""

        def steps(tx: Transaction) -> None:
            for each in tx.sql.allow("moved", ("leases",)):  # a copy to another place may have been killed
                tx.execute(each)
            self._forbid(tx, ("leases",), ("INSERT",), place)

        self.write(steps)

    def close(self, place: str, at: int) -> None:
        """From this commit on, nothing changes here, and whoever opens the database learns where its jobs are."""

        def steps(tx: Transaction) -> None:
            self._forbid(tx, CLOSED, CHANGES, place)
            moved.note(tx, f"{moved.MOVED}{place}", at)

        self.write(steps)

    @staticmethod
    def _forbid(tx: Transaction, tables: Sequence[str], changes: Sequence[str], place: str) -> None:
        for each in tx.sql.forbid("moved", tables, changes, f"{HAS_MOVED}{place}", "true"):
            tx.execute(each)

    def reopen(self) -> None:
        """Undo `close` and `close_claims`."""

        def steps(tx: Transaction) -> None:
            for each in tx.sql.allow("moved", CLOSED):
                tx.execute(each)
            moved.drop_notes(tx, moved.MOVED)

        self.write(steps)

    # Rows

    def _select(self, tx: Transaction, table: str, which: str, given: Mapping[str, Any]) -> list[Row]:
        columns = self.columns[table]
        shown = ", ".join(f"{name}::text" if kind in ("uuid", "json") else name for name, kind in columns.items())
        rows = tx.execute(tx.sql.translate(f"SELECT {shown} FROM treadle.{table} {which}"), given)
        return [dict(zip(columns, row, strict=True)) for row in rows.fetchall()]

    def _insert(self, tx: Transaction, table: str, rows: Sequence[Row]) -> None:
        if not rows:
            return
        columns = {name: kind for name, kind in self.columns[table].items() if name in rows[0]}
        values = (f"(e ->> {i}){kind and '::' + kind}" for i, kind in enumerate(columns.values()))
        sql = f"""
            INSERT INTO treadle.{table} ({", ".join(columns)}) SELECT {", ".join(values)}
              FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
        """
        for part in in_parts(rows, _size):
            given = {"rows": as_json([[row[name] for name in columns] for row in part])}
            tx.execute(tx.sql.translate(sql), given)


def _size(row: Row) -> int:
    return sum(len(value) for value in row.values() if isinstance(value, str))


def in_parts(items: Iterable[T], size: Callable[[T], int], most: int = ROWS) -> Iterator[list[T]]:
    """The items in parts that are at most so large, unless one item is larger, and have at most so many."""
    part: list[T] = []
    total = 0
    for item in items:
        total += size(item)
        if part and (total > BYTES or len(part) == most):
            yield part
            part, total = [], size(item)
        part.append(item)
    if part:
        yield part


def _added_up(usage: Sequence[Row]) -> list[Row]:
    """One row for each minute, type, queue and tenant. PostgreSQL appends more, and a chore adds them up later."""
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in usage:
        key = tuple(row[name] for name in USAGE_KEY)
        if (before := sums.get(key)) is None:
            sums[key] = dict(row)
        else:
            before.update({name: before[name] + n for name, n in row.items() if name not in USAGE_KEY})
    return list(sums.values())


def checksum(rows: Sequence[Row], columns: Collection[str]) -> str:
    """The same for the same rows in any order, whatever database they are from."""
    lines = sorted(msgspec.json.encode([row[name] for name in sorted(columns)]) for row in rows)
    return hashlib.sha256(b"\n".join(lines)).hexdigest()


def chunks(tables: Tables, size: int = CHUNK) -> Iterator[tuple[str, list[str]]]:
    """The ids of all jobs, in chunks: each with the id after which it begins."""
    after = FIRST
    while ids := tables.next_ids(after, size):
        yield after, ids
        after = ids[-1]
