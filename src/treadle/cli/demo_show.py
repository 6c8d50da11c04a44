"""What `treadle demo` shows: bars on the way, and a table at the end."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections import Counter
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from treadle.cli import output
from treadle.job import Job, Status

if TYPE_CHECKING:
    from treadle.app import Treadle
    from treadle.cli.base import Shared
    from treadle.stores.base import WorkerRow


class Seen(NamedTuple):
    """What the database said at one look."""

    total: int
    completed: int
    processing: int
    ended_otherwise: int
    workers: int


class Row(msgspec.Struct, kw_only=True):
    """What became of the jobs of one type."""

    type: str
    jobs: int = 0
    completed: int = 0
    retried_runs: int = 0
    killed_and_completed: int = 0


class Report(msgspec.Struct, kw_only=True):
    types: list[Row]
    jobs: int
    unfinished: int
    seconds: float
    jobs_per_second: float
    killed: str | None
    held_when_killed: int
    database: str | None = None


class DemoScreen:
    """The audience sees what the database says."""

    def __init__(self, shared: Shared, app: Treadle) -> None:
        self._shared, self._app = shared, app
        # With --json, stdout is for the report alone.
        self._console = shared.err if shared.json else shared.out
        self._live = self._console.is_terminal
        self._bars = Progress(
            TextColumn("{task.description:<13}"),
            BarColumn(40, complete_style="cyan", finished_style="green"),
            MofNCompleteColumn(),
            console=self._console,
            disable=not self._live,
        )
        self._tasks: dict[str, TaskID] = {}
        self._first_at: float | None = None
        self._last_at = self._told_at = 0.0
        self._held: Sequence[Job] = ()
        self.victim: WorkerRow | None = None
        self._returned = self._replaced = False

    def say(self, mark: str, text: str, style: str = "") -> None:
        if not self._shared.quiet:
            self._console.print(f"{mark} {text}", style=style or None, soft_wrap=True)

    def opened(self, url: str) -> None:
        stored = sum(row["count"] for row in self._app.counts())
        self.say("•", f"{stored} jobs stored in {self._app.store.where}")
        self.say("•", "two worker processes start: treadle worker … --processes 2")

    @contextlib.contextmanager
    def progress(self) -> Generator[None]:
        with self._bars:
            yield

    def look(self) -> Seen:
        """Read the counts, and show them."""
        by_type: dict[str, Counter[str]] = {}
        for row in self._app.counts(("status", "type")):
            by_type.setdefault(row["type"], Counter())[row["status"]] += row["count"]
        sums: Counter[str] = sum(by_type.values(), Counter())
        ended = sums["failed"] + sums["cancelled"]
        workers = self._app.workers()
        seen = Seen(sums.total(), sums["completed"], sums["processing"], ended, len(workers))
        now = time.monotonic()
        if self._first_at is None and seen.processing + seen.completed:
            self._first_at = now
            self._told_at = now - 1
        self._last_at = now
        for type, counter in sorted(by_type.items()):
            task = self._tasks.get(type)
            if task is None:
                task = self._tasks[type] = self._bars.add_task(type)
            self._bars.update(task, completed=counter["completed"], total=counter.total())
        self._tell(seen, now)
        self._after_the_kill(workers)
        return seen

    def _tell(self, seen: Seen, now: float) -> None:
        """Without a terminal: a line every second."""
        done = seen.completed == seen.total
        if not self._live and self._first_at is not None and (now - self._told_at >= 1 or done):
            self._told_at = now
            self.say(
                " ",
                f"{now - self._first_at:4.1f} s  {seen.completed}/{seen.total} completed, "
                f"{seen.processing} processing, {seen.workers} workers",
            )

    def killed(self, worker: WorkerRow, held: Sequence[Job]) -> None:
        self.victim, self._held = worker, held
        self.say("✗", f"kill -9 {worker.name}: it dies with {len(held)} jobs in hand", "red")

    def _after_the_kill(self, workers: Sequence[WorkerRow]) -> None:
        if self.victim is None:
            return
        if not self._returned and self.victim.id not in self._holders():
            self._returned = True
            self.say("✓", f"its supervisor noticed: the {len(self._held)} jobs are back in the queue", "green")
        newest = max(workers, key=lambda worker: worker.started_at, default=None)
        if (
            self._returned
            and not self._replaced
            and newest
            and newest.started_at > self.victim.seen_at
            and len(workers) > 1
        ):
            self._replaced = True
            self.say("✓", f"{newest.name} works in its place", "green")

    def _holders(self) -> set[str | None]:
        """Who has jobs in hand."""
        return {job.worker_id for job in self._app.jobs(status=Status.PROCESSING, limit=200)}

    def report(self) -> Report:
        """Every job, read once more."""
        rows: dict[str, Row] = {}
        held = {job.id for job in self._held}
        cursor: str | None = None
        while True:
            page = self._app.jobs(limit=200, cursor=cursor)
            for job in page:
                row = rows.setdefault(job.type, Row(type=job.type))
                done = job.status is Status.COMPLETED
                row.jobs += 1
                row.completed += done
                row.killed_and_completed += done and job.id in held
                row.retried_runs += self._retries(job)
            cursor = page.next
            if cursor is None:
                break
        types = [rows[name] for name in sorted(rows)]
        jobs, completed = sum(row.jobs for row in types), sum(row.completed for row in types)
        seconds = max(self._last_at - (self._first_at or self._last_at), 1e-9)
        return Report(
            types=types,
            jobs=jobs,
            unfinished=jobs - completed,
            seconds=round(seconds, 2),
            jobs_per_second=round(completed / seconds, 1),
            killed=self.victim.name if self.victim else None,
            held_when_killed=len(held),
        )

    def _retries(self, job: Job) -> int:
        """Runs that failed by themselves; those that died with their worker are not theirs."""
        victim = self.victim.id if self.victim else ""
        return sum(
            attempt.worker_id != victim or attempt.traceback is not None for attempt in self._app.attempts(job.id)
        )

    def closed(self, report: Report, kept: str | None) -> None:
        if self._shared.json:
            report.database = kept
            self._shared.data(report)
            return
        heads = ("TYPE", "JOBS", "COMPLETED", "RETRIED RUNS", "SURVIVED THE KILL")
        table = output.table(*heads, right=heads[1:])
        for row in report.types:
            done = output.number(row.completed, "green" if row.completed == row.jobs else "red")
            survived = output.number(row.killed_and_completed)
            table.add_row(row.type, output.number(row.jobs), done, output.number(row.retried_runs), survived)
        self._shared.print()
        output.show(self._shared, table)
        self._shared.print()
        self._end(report, kept)

    def _end(self, report: Report, kept: str | None) -> None:
        rate = f"in {report.seconds:.1f} s ({report.jobs_per_second:,.0f} jobs/s, each of 5 to 80 ms, 8 at a time)"
        if report.unfinished:
            self.say("✗", f"{report.unfinished} of {report.jobs} jobs are not completed", "red")
        else:
            self.say("✓", f"all {report.jobs} jobs completed {rate}", "green")
        if kept:
            words = shlex.quote(kept)
            self.say("•", f"the database is {self._app.store.where}; look around:")
            for command in (f"jobs ls --db {words}", f"stats --db {words}", f"doctor --db {words}"):
                self.say(" ", f"  treadle {command}")
        else:
            self.say("•", "the database was temporary; treadle demo --keep leaves it to look around in")
            self.say("•", "next: write app.py with `td = Treadle()` and an @td.job, then: treadle worker app:td")
