"""The raw ceiling: the same rows, moved through the same tables by a bare loop of batched SQL in one process.

It has no handler, no lease to check, one type and no other worker: what remains is what the database and the disk can
do for a program that writes batches of rows by hand. Everything is compared with that. Other ways to write the loop are
shown with it: each batch as one text, which is treadle's own way and the fastest; and on PostgreSQL row by row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from bench.backend import Loop
from bench.measure import alternately
from bench.report import ReportRow
from bench.setting import Setting
from treadle.ids import new_id

CHUNK = 1000
"""Jobs in one bulk enqueue."""


class Ceiling:
    """Raw rates, measured next to what is compared with them."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._database = setting.backend.new("ceiling")
        self._database.alone()
        self._loop = setting.backend.loops[0]

    def insert(self, n: int, loop: Loop | None = None) -> float:
        """New jobs per second, in batches as large as a bulk enqueue's."""
        return self.insert_payloads([f'{{"n":{i}}}' for i in range(n)], CHUNK, loop)

    def insert_payloads(self, payloads: Sequence[str], chunk: int, loop: Loop | None = None) -> float:
        """New jobs per second with these payloads, in batches of `chunk`."""
        insert = (loop or self._loop).insert
        rows = [(new_id(), payload) for payload in payloads]
        self._database.clear()
        began = time.perf_counter()
        for start in range(0, len(rows), chunk):
            insert(self._database.connection, rows[start : start + chunk])
        return len(rows) / (time.perf_counter() - began)

    def insert_singly(self, seconds: float) -> float:
        """New jobs per second, each in a commit of its own."""
        count, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            self._loop.insert(self._database.connection, [(new_id(), f'{{"n":{count}}}')])
            count += 1
        return count / passed

    def move(self, n: int, loop: Loop | None = None) -> float:
        """Jobs moved from ready over leases to finished per second, in batches as large as a worker's."""
        move = (loop or self._loop).move
        self._database.clear()
        self._database.waiting(n)
        began = time.perf_counter()
        moved = 0
        while moved < n:
            moved += move(self._database.connection, self._setting.concurrency)
        return n / (time.perf_counter() - began)

    def close(self) -> None:
        self._database.close()


def measure(setting: Setting, ceiling: Ceiling) -> list[ReportRow]:
    """The ceilings themselves."""
    rows = []
    for key, what, unit, run in _runs(setting, ceiling):
        [sample] = alternately(setting, {what: run}).values()
        rows.append(ReportRow.of("ceiling", key, what, unit, sample))
    return rows


def _runs(setting: Setting, ceiling: Ceiling) -> Sequence[tuple[str, str, str, Callable[[], float]]]:
    key, what, _ = setting.backend.safe
    first, *others = setting.backend.loops
    insert, move = partial(ceiling.insert, setting.sizes.bulk), partial(ceiling.move, setting.sizes.noop)
    claims = f"{first.what}: claim and complete, {setting.concurrency:,} a batch"
    return [
        (key, what, "/s", lambda: setting.backend.commits(setting.sizes.seconds)),
        ("raw_insert", f"{first.what}: insert, {CHUNK:,} a batch", "jobs/s", insert),
        *((f"raw_insert_{loop.key}", loop.what, "jobs/s", partial(insert, loop)) for loop in others),
        ("raw_move", claims, "jobs/s", move),
        *((f"raw_move_{loop.key}", loop.what, "jobs/s", partial(move, loop)) for loop in others),
    ]
