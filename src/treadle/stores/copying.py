"""Copying a database: the rows of jobs, chunk by chunk, and the other tables as a whole.

Rows travel as dicts by column, so that databases whose tables differ a little can exchange them. A chunk is written by
one transaction, which first deletes what an earlier copy has of these jobs. So it can be repeated at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import msgspec

from treadle.codec import as_json
from treadle.stores.copy_access import OF_ALL, OF_JOBS, OF_TENANTS, CopyAccess
from treadle.stores.shared.stats import tally
from treadle.stores.statements.parts import MOST, THESE
from treadle.stores.transaction import Transaction

USAGE_KEY = ("minute", "type", "queue", "tenant")
CHUNK = 500
"""Jobs in a transaction: on SQLite it takes less than 50 ms."""
ROWS = 2000
"""Rows of other tables in a transaction."""
BYTES = 4 << 20
"""... and bytes of all of them, and of a statement. If one job has more, it is a chunk of its own."""
FIRST = "00000000-0000-0000-0000-000000000000"

Row = Mapping[str, Any]
T = TypeVar("T")


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


class Tables(CopyAccess):
    """The tables of one database."""

    @cached_property
    def _all_columns(self) -> dict[str, dict[str, str]]:
        tables = (*OF_JOBS, *OF_TENANTS, *OF_ALL)
        return self.read(
            lambda tx: {table: dict(tx.execute(tx.sql.COLUMNS, {"table": table}).fetchall()) for table in tables}
        )

    @cached_property
    def columns(self) -> dict[str, dict[str, str]]:
        """The columns of each table, with the types that values are cast to. Not the numbers of rows that the database
        gives by itself."""
        found = self._all_columns.items()
        return {table: {name: kind for name, kind in columns.items() if name != "seq"} for table, columns in found}

    # Jobs

    def next_ids(self, after: str, limit: int) -> list[str]:
        # `ORDER BY id` would mean the text, by which PostgreSQL has no index: it would sort all that is left.
        sql = f"""SELECT j.id::text FROM treadle.jobs j
                   WHERE j.id > CAST(CAST(:after AS text) AS uuid) AND {self._of_tenant("j.tenant")}
                   ORDER BY j.id LIMIT :limit"""
        given = {"after": after, "limit": limit, "tenant": self.tenant}
        return [row[0] for row in self._execute(sql, given)]

    def places(self, after: str, upto: str) -> dict[str, Place]:
        """From each table by itself: PostgreSQL joins ranges as if they were a row, or reads a whole table for one."""
        given = {"after": after, "upto": upto, "tenant": self.tenant}

        def rows(table: str, columns: str) -> list[tuple[Any, ...]]:
            between = "id > CAST(CAST(:after AS text) AS uuid) AND id <= CAST(CAST(:upto AS text) AS uuid)"
            sql = f"SELECT id::text, {columns} FROM treadle.{table} WHERE {between} AND {self._of_tenant()}"
            return self._execute(sql, given)

        # In the order in which jobs go, so that one that has ended meanwhile is found where it is.
        jobs, blocked = rows("jobs", "type, queue"), {id for id, parked in rows("ready", "parked") if parked == "wait"}
        ended = {id: Ended(*row) for id, *row in rows("finished", "status, completed_at, lease, attempts")}
        return {id: Place(ended.get(id), id in blocked, type, queue) for id, type, queue in jobs}

    def _execute(self, sql: str, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return self.read(lambda tx: tx.execute(tx.sql.translate(sql), given).fetchall())

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

        found = self.read(steps)
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
                delete = f"DELETE FROM treadle.{table} WHERE id = {THESE}"
                tx.execute(tx.sql.translate(delete), {"ids": as_json([*gone])})
            for table, written in rows.items():
                self._insert(tx, table, written)
            came = [(place.status, place.type, place.queue, 1) for place in places.values()]
            tally(tx, [*came, *((place.status, place.type, place.queue, -1) for place in gone.values())])

        self.fill(steps)

    # Other tables

    def all_rows(self, table: str) -> Iterator[Row]:
        """The rows of a table, of all tenants or of one. Its usage may not fit into memory."""
        if table == "usage":
            return self._usage()
        order = "ORDER BY seq" if "seq" in self._all_columns[table] else ""
        return iter(self.read(self._select, table, f"WHERE {self._of_tenant()} {order}", {"tenant": self.tenant}))

    def _of_tenant(self, column: str = "tenant") -> str:
        return "true" if self.tenant is None else f"{column} = CAST(:tenant AS text)"

    def _usage(self) -> Iterator[Row]:
        """Some minutes after the others, each as a whole: its rows are added up."""
        after, upto = -1, 0
        while upto < MOST:
            given = {"tenant": self.tenant, "after": after, "rows": ROWS}
            which = f"{self._of_tenant()} AND minute > CAST(:after AS bigint)"
            sql = f"SELECT minute FROM treadle.usage WHERE {which} ORDER BY minute LIMIT 1 OFFSET :rows"
            upto = next((row[0] for row in self._execute(sql, given)), MOST)
            yield from _added_up(self.read(self._select, "usage", f"WHERE {which} AND minute <= {upto}", given))
            after = upto

    def replace_all(self, table: str, rows: Iterable[Row]) -> None:
        """Put these rows in place of those that the table has, of all tenants or of one, in chunks. The first commit is
        the one that deletes: a few rows, such as the pause of a tenant, are always there."""
        delete = f"DELETE FROM treadle.{table} WHERE {self._of_tenant()}"

        def replace_first(tx: Transaction, part: Sequence[Row]) -> None:
            tx.execute(tx.sql.translate(delete), {"tenant": self.tenant})
            self._insert(tx, table, part)

        parts = in_parts(rows, _size, ROWS)
        self.fill(replace_first, next(parts, []))
        for part in parts:
            self.fill(self._insert, table, part)

    # The number of leases, and notes

    def leases_given(self) -> int:
        return int(self.read(lambda tx: tx.value(tx.sql.LEASES_GIVEN)))

    def raise_leases(self, number: int) -> None:
        """Let the next lease have a higher number."""
        self.write(lambda tx: tx.execute(tx.sql.RAISE_LEASES, {"number": number}))

    def running(self) -> int:
        sql = f"SELECT count(*) FROM treadle.leases WHERE {self._of_tenant()}"
        return int(self._execute(sql, {"tenant": self.tenant})[0][0])

    def count(self) -> int:
        """How many jobs there are, of all tenants."""
        return int(self.read(lambda tx: tx.value(tx.sql.COUNT_JOBS)))

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


class Checksum(NamedTuple):
    rows: int
    sum: int


def checksum(rows: Iterable[Row], columns: Collection[str]) -> Checksum:
    """The number of rows and the sum of their hashes: the same for the same rows in any order, from any database."""
    count = total = 0
    names = sorted(columns)
    for row in rows:
        line = msgspec.json.encode([row[name] for name in names])
        count += 1
        total += int.from_bytes(hashlib.sha256(line).digest(), "big")
    return Checksum(count, total)


def chunks(tables: Tables, size: int = CHUNK) -> Iterator[tuple[str, list[str]]]:
    """The ids of all jobs, in chunks: each with the id after which it begins."""
    after = FIRST
    while ids := tables.next_ids(after, size):
        yield after, ids
        after = ids[-1]
