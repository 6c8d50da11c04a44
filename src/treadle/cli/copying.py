"""`treadle copy`: all jobs, with their history, to another database, also while the source works.

What has ended is copied first, and again and again: it no longer changes, and it is most of the data. Then the source
is closed: nothing is claimed, what runs ends, and nothing changes any more. The rest is copied, everything is compared,
and the target may be opened. Each step can be repeated: a copy that was killed starts again, and writes what differs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from treadle.errors import StoreBusy
from treadle.pauses import Target
from treadle.stores.base import Store
from treadle.stores.copy_access import OF_ALL, OF_JOBS, OF_TENANTS, CannotCopy
from treadle.stores.copying import FIRST, Checksum, Place, Row, Tables, checksum, chunks
from treadle.stores.shared.moved import COMPLETE, FILLED, MOVED, QUIETED
from treadle.stores.shared.store import SQLStore
from treadle.units import plural
from treadle.worker.chores import declare_local_dead
from treadle.worker.tick import declare_lost_dead

LAST = "ffffffff-ffff-ffff-ffff-ffffffffffff"
FEW = 1000
"""Jobs that one pass copies: then the next pass is the last before the source is closed."""
EVERY = 1.0
PATIENCE = 60.0
"""Seconds that transactions in the target may take to end. On PostgreSQL, whoever adds or drops triggers waits."""

Rows = Mapping[str, Sequence[Row]]
"""Rows of jobs, by their table."""
Report = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and how much there is."""


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy did."""

    jobs: int
    """How many jobs the target has, of those that the source has."""
    written: int
    """How many of them this run has written."""
    rows: dict[str, int]
    """How many rows of each table were compared, and are the same."""
    moved: bool
    """Whether the source is closed, and says where its jobs are."""


class Copy:
    """One copy from a database to another."""

    def __init__(self, source: Store, target: Store, report: Report, tenant: str | None = None) -> None:
        for store in (source, target):
            cast(SQLStore[Any], store).opens_moved = True
        self._store, self._target = source, target
        self.source, self.target = (Tables(cast(SQLStore[Any], store), tenant) for store in (source, target))
        self._report, self._tenant = report, tenant
        self._written = 0

    @property
    def is_done(self) -> bool:
        """Whether an earlier run has moved all of it, and the target works already."""
        here, there = self.source, self.target
        return f"{MOVED}{there.url}" in here.notes() and f"{COMPLETE}{here.url}" in there.notes(COMPLETE)

    def begin(self) -> None:
        """Check that this can be done. What has no jobs is made the target, and nobody else opens it until the end."""
        here, there = self.source.url, self.target.url
        if here == there:
            raise CannotCopy(f"{here} is both the source and the target; name another target")
        elsewhere = [note for note in self.source.notes() if note != f"{MOVED}{there}"]
        if elsewhere:
            raise CannotCopy(f"{here} is {elsewhere[0]}; copy from there, or to there")
        notes = self.target.notes()
        if any(note != f"{FILLED}{here}" for note in notes):
            raise CannotCopy(f"{there} is {notes[0]}; name another target")
        if self._tenant is None:
            self._patiently(lambda: self.target.start_filling(here, self._store.now()), time.monotonic() + PATIENCE)
            return
        if not self._is_paused(self._store):  # one that ends by itself would end on both sides
            first = f"first, without an end: td.pause(tenant={self._tenant!r})"
            raise CannotCopy(f"tenant {self._tenant!r} is not paused in {here} until somebody resumes it; {first}")
        if self.target.next_ids(FIRST, 1) and not self._is_paused(self._target):  # an interrupted copy has paused it
            raise CannotCopy(f"{there} has jobs of tenant {self._tenant!r} already; delete them first")

    def _is_paused(self, store: Store) -> bool:
        return any(pause.target == Target(tenant=self._tenant or "") and not pause.until for pause in store.pauses())

    def follow(self) -> int:
        """Copy what has ended since the last time. Return how many jobs that was."""
        before = self._written
        for after, ids in self._chunks("what has ended"):
            here, there = (side.places(after, ids[-1]) for side in (self.source, self.target))
            ended = [id for id, place in here.items() if place.ended and there.get(id) != place]
            self._copy(ended, there, ended_only=True)
        return self._written - before

    def close_source(self, wait: float) -> None:
        """Let what runs end, and then nothing change. If that takes too long, open the source again."""
        if any(note.startswith(MOVED) for note in self.source.notes()):
            return
        there, deadline = self.target.url, time.monotonic() + wait
        try:
            self._drain(there, deadline)
            self._patiently(lambda: self.source.close(there, self._store.now()), deadline)
        except BaseException:
            self.reopen()
            raise

    def _drain(self, there: str, deadline: float) -> None:
        self._patiently(lambda: self.source.close_claims(there), deadline)
        for worker in self._store.workers():
            if worker.quiet_at is None:  # not one that somebody else has made quiet
                self.source.note(f"{QUIETED}{worker.id}", self._store.now())
                self._store.set_quiet(worker.id, True)
        at_first = self.source.running()
        while running := self.source.running():
            self._report("waiting for running jobs", at_first - running, at_first)
            if time.monotonic() > deadline:
                way_out = "wait longer (--wait), or cancel them; the source is open again"
                raise CannotCopy(f"{_are(running)} still running in {self.source.url}; {way_out}")
            self._store.rescue()
            declare_local_dead(self._store)
            declare_lost_dead(self._store)
            time.sleep(min(EVERY, 0.05 * running))

    def _patiently(self, call: Callable[[], None], deadline: float) -> None:
        """Repeat what has to wait for transactions of users."""
        while True:
            try:
                return call()
            except StoreBusy:
                if time.monotonic() > deadline:
                    raise

    def reopen(self) -> None:
        self.source.reopen()
        for note in self.source.notes(QUIETED):
            self._store.set_quiet(note.removeprefix(QUIETED), False)
        self.source.drop_notes(QUIETED)

    def finish(self, *, moved: bool) -> CopyReport:
        """Copy the rest, compare everything, and let the target be opened. Nothing may change in the source."""
        given = self.source.leases_given()
        self._refuse_claims(given)
        if self._tenant is not None:
            self.target.replace_all("pauses", self.source.all_rows("pauses"))  # first: so nothing of it starts there
        last = FIRST
        for after, ids in self._chunks("jobs"):
            here, there = (side.places(after, ids[-1]) for side in (self.source, self.target))
            # What has not ended is always written: more of it may differ than where it is.
            self._copy([id for id, place in here.items() if not place.ended or there.get(id) != place], there)
            self._drop({id: place for id, place in there.items() if id not in here})
            last = ids[-1]
        self._drop(self.target.places(last, LAST))
        for table in self._others:
            self.target.replace_all(table, self.source.all_rows(table))
        self.target.raise_leases(given)
        rows = self._compare(has_all=moved)
        self._refuse_claims(given)
        if self._tenant is None:
            source, at = self.source.url, self._store.now()
            self._patiently(lambda: self.target.end_filling(source, at), time.monotonic() + PATIENCE)
        return CopyReport(jobs=rows["jobs"], written=self._written, rows=rows, moved=moved)

    def _refuse_claims(self, given: int) -> None:
        """Raise CannotCopy if a job runs, or was claimed after so many leases had been given."""
        way_out = "stop its workers first, or let --cutover wait for them"
        if running := self.source.running():
            raise CannotCopy(f"{_are(running)} running in {self.source.url}; {way_out}")
        if self._tenant is None and self.source.leases_given() > given:  # the other tenants may go on
            raise CannotCopy(f"jobs have run in {self.source.url} in the meantime; {way_out}")

    @property
    def _others(self) -> tuple[str, ...]:
        return OF_TENANTS if self._tenant is not None else (*OF_TENANTS, *OF_ALL)

    def _chunks(self, what: str) -> Any:
        done, total = 0, self.source.count()
        for after, ids in chunks(self.source):
            yield after, ids
            done += len(ids)
            self._report(what, done, max(done, total))

    def _copy(self, ids: Collection[str], there: Mapping[str, Place], *, ended_only: bool = False) -> None:
        for part in self.source.parts(ids) if ids else ():
            rows = self.source.rows_of(part)
            places = self.source.places_of(rows)
            if ended_only:  # some may be retried just now, or have not ended
                places = {id: place for id, place in places.items() if place.ended}
                rows = {table: [row for row in some if row["id"] in places] for table, some in rows.items()}
            if places:
                self.target.replace({id: there[id] for id in places if id in there}, rows, places)
                self._written += len(places)

    def _drop(self, gone: Mapping[str, Place]) -> None:
        """Delete jobs that were deleted in the source after they were copied. Not those of a tenant: its producers may
        have enqueued them in the target."""
        if self._tenant is None and gone:
            self.target.replace(gone, {}, {})
        elif own := [id for id, place in gone.items() if not place.ended]:
            way_out = "delete it there, and let producers use the source until the copy has ended"
            raise CannotCopy(f"job {own[0]} is in {self.target.url}, but not in {self.source.url}; {way_out}")

    def _compare(self, *, has_all: bool) -> dict[str, int]:
        """How many rows of each table are the same on both sides. Raises CannotCopy if others are not. `has_all`: the
        source is closed, so that no job has its only other row among the leases."""
        counts = dict.fromkeys((*OF_JOBS, *self._others), 0)
        for part in (part for _, ids in self._chunks("comparing") for part in self.source.parts(ids)):
            here, there = self.source.rows_of(part), self.target.rows_of(part)
            if self._differing(here, there) and (table := self._differing(here, self._copy_again(part, here, there))):
                raise self._has_changed(table)
            if not has_all:
                self._refuse_nowhere(here)
            for table in OF_JOBS:
                counts[table] += len(here[table])
        for table in self._others:
            ours, theirs = self._checksums(table, self.source.all_rows(table), self.target.all_rows(table))
            if ours != theirs:
                raise self._has_changed(table)
            counts[table] = ours.rows
        return counts

    def _refuse_nowhere(self, here: Rows) -> None:
        placed = {row["id"] for table in ("ready", "finished") for row in here[table]}
        if nowhere := [row["id"] for row in here["jobs"] if row["id"] not in placed]:
            way_out = "stop its workers first; if it does not run, see treadle doctor"
            raise CannotCopy(f"job {nowhere[0]} neither waits nor has ended in {self.source.url}; {way_out}")

    def _copy_again(self, ids: Collection[str], here: Rows, there: Rows) -> Rows:
        """Write jobs again that had ended when they were copied. A job that is deleted or pruned takes the waits of its
        children with it, and they look as before."""
        before = self.target.places_of(there)
        places = {id: p for id, p in self.source.places_of(here).items() if p.ended and before.get(id) == p}
        rows = {table: [row for row in some if row["id"] in places] for table, some in here.items()}
        self.target.replace(places, rows, places)
        return self.target.rows_of(ids)

    def _differing(self, here: Rows, there: Rows) -> str | None:
        """A table whose rows of some jobs are not the same."""
        sums = {table: self._checksums(table, here[table], there[table]) for table in OF_JOBS}
        return next((table for table, (ours, theirs) in sums.items() if ours != theirs), None)

    def _checksums(self, table: str, *sides: Iterable[Row]) -> list[Checksum]:
        columns = self.source.columns[table].keys() & self.target.columns[table].keys()
        return [checksum(rows, columns) for rows in sides]

    def _has_changed(self, table: str) -> CannotCopy:
        way_out = "it has changed in the meantime: stop its programs, or use --cutover, and run this again"
        return CannotCopy(f"the table {table} differs between {self.source.url} and {self.target.url}; {way_out}")


def _are(jobs: int) -> str:
    return f"{plural(jobs, 'job')} {'is' if jobs == 1 else 'are'}"


def has_caught_up(before: float, copied: float) -> bool:
    """Whether one more pass would leave as many jobs behind: a busy source ends new ones during each."""
    return copied <= FEW or copied > before / 2


def copy(
    source: Store,
    target: Store,
    report: Report,
    *,
    tenant: str | None = None,
    follow: bool = False,
    cutover: bool = False,
    wait: float = 300.0,
) -> CopyReport:
    """Copy all jobs. With `follow`, what ends is copied until few are left, and without `cutover` it never stops."""
    if tenant is not None and (follow or cutover):
        raise CannotCopy("one tenant is copied while it is paused; leave out --follow and --cutover")
    one = Copy(source, target, report, tenant)
    if one.is_done:
        return CopyReport(jobs=one.source.count(), written=0, rows={}, moved=True)
    one.begin()
    copied = math.inf
    while follow:
        before, copied = copied, one.follow()
        if cutover and has_caught_up(before, copied):
            break
        if not cutover:
            time.sleep(EVERY)
    if cutover:
        one.follow()
        one.close_source(wait)
    return one.finish(moved=cutover)
