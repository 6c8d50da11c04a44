"""What `treadle demo` shows: bars while it runs, and a table at the end. All of it was read from the database."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence, Set

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from treadle.app import Treadle
from treadle.cli.base import Shared
from treadle.cli.output import Columns, number, show
from treadle.job import Job, Status
from treadle.management import every_job
from treadle.stores.base import WorkerRow
from treadle.units import plural


class TypeResult(msgspec.Struct):
    """What happened to the jobs of one type."""

    type: str
    jobs: int = 0
    completed: int = 0
    retried_runs: int = 0
    killed_and_completed: int = 0


class DemoScreen:
    """Shows on stdout what the database says; with --json on stderr, because stdout is for the report alone."""

    def __init__(self, shared: Shared, app: Treadle) -> None:
        self._shared, self._app = shared, app
        self._console = shared.err if shared.json else shared.out
        bar = BarColumn(40, complete_style="cyan", finished_style="green")
        columns = TextColumn("{task.description:<13}"), bar, MofNCompleteColumn()
        self.bars = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._began = self._last = self._next_line = 0.0
        self.victim: WorkerRow | None = None
        self._held: Sequence[Job] = ()
        self._recovery: Iterator[None] = iter(())

    def say(self, mark: str, text: str, style: str = "") -> None:
        if not self._shared.quiet:
            self._console.print(f"{mark} {text}", style=style or None, soft_wrap=True)

    def look(self) -> Counter[str]:
        by_type: dict[str, Counter[str]] = {}
        for row in self._app.counts(("status", "type")):
            by_type.setdefault(row["type"], Counter())[row["status"]] += row["count"]
        seen: Counter[str] = sum(by_type.values(), Counter())
        self._last = time.monotonic()
        if seen["processing"] + seen["completed"] and not self._began:
            self._began = self._next_line = self._last
        if not self.bars.disable:
            self._draw(by_type)
        elif self._began and (self._last >= self._next_line or seen["completed"] == seen.total()):
            self._print_line(seen)
        next(self._recovery, None)
        return seen

    def _draw(self, by_type: dict[str, Counter[str]]) -> None:
        tasks = {task.description: task.id for task in self.bars.tasks}
        for type, counter in sorted(by_type.items()):
            task = tasks[type] if type in tasks else self.bars.add_task(type)
            self.bars.update(task, completed=counter["completed"], total=counter.total())

    def _print_line(self, seen: Counter[str]) -> None:
        """Without a terminal there are no bars, but a line every second."""
        self._next_line = self._last + 1
        done = f"{seen['completed']}/{seen.total()} completed, {seen['processing']} processing"
        self.say(" ", f"{self._last - self._began:4.1f} s  {done}, {plural(len(self._app.workers()), 'worker')}")

    def killed(self, worker: WorkerRow, held: Sequence[Job], workers: Sequence[WorkerRow]) -> None:
        """One of the workers was killed while it held these jobs."""
        self.victim, self._held = worker, held
        self._recovery = self._watch_recovery(worker, {one.id for one in workers})
        self.say("✗", f"kill -9 {worker.name}: it dies while it runs {plural(len(held), 'job')}", "red")

    def _watch_recovery(self, victim: WorkerRow, known: Set[str]) -> Iterator[None]:
        """Continued at each look: first the jobs come back, then a new worker."""
        while any(job.worker_id == victim.id for job in self._app.jobs(status=Status.PROCESSING, limit=200)):
            yield
        self.say("✓", f"its supervisor noticed: {plural(len(self._held), 'job')} back in the queue", "green")
        while not (new := [worker for worker in self._app.workers() if worker.id not in known]):
            yield
        self.say("✓", f"{new[-1].name} works in its place", "green")

    def report(self, kept: str | None) -> int:
        """Read every job once more, show what happened to them, and return how many are not completed."""
        rows, seconds = self._rows(), max(self._last - self._began, 1e-9)
        jobs, completed = sum(row.jobs for row in rows), sum(row.completed for row in rows)
        rate = completed / seconds
        report = {
            "types": rows,
            "jobs": jobs,
            "unfinished": jobs - completed,
            "seconds": round(seconds, 2),
            "jobs_per_second": round(rate, 1),
            "killed": self.victim.name if self.victim else None,
            "held_when_killed": len(self._held),
            "database": kept,
        }
        if not self._shared.printed_json(report):
            self._print_table(rows)
            if completed < jobs:
                self.say("✗", f"{jobs - completed} of {jobs} jobs are not completed", "red")
            else:
                speed = f"in {seconds:.1f} s ({rate:,.0f} jobs/s, each of 5 to 80 ms, 8 at a time)"
                self.say("✓", f"all {jobs} jobs completed {speed}", "green")
            self._say_what_next(kept)
        return jobs - completed

    def _rows(self) -> list[TypeResult]:
        rows: dict[str, TypeResult] = {}
        held, victim = {job.id for job in self._held}, self.victim.id if self.victim else ""
        for job in every_job(self._app):
            row, done = rows.setdefault(job.type, TypeResult(job.type)), job.status is Status.COMPLETED
            row.jobs += 1
            row.completed += done
            row.killed_and_completed += done and job.id in held
            # Runs that failed by themselves; those that died with their worker are not counted.
            row.retried_runs += sum(a.worker_id != victim or bool(a.traceback) for a in self._app.attempts(job.id))
        return [rows[name] for name in sorted(rows)]

    def _print_table(self, rows: Sequence[TypeResult]) -> None:
        columns: Columns = {
            "TYPE": [row.type for row in rows],
            "JOBS": [number(row.jobs) for row in rows],
            "COMPLETED": [number(row.completed, "green" if row.completed == row.jobs else "red") for row in rows],
            "RETRIED RUNS": [number(row.retried_runs) for row in rows],
            "SURVIVED THE KILL": [number(row.killed_and_completed) for row in rows],
        }
        self._shared.print()
        show(self._shared, columns, right=columns.keys() - {"TYPE"})
        self._shared.print()

    def _say_what_next(self, kept: str | None) -> None:
        if kept:
            self.say("•", f"the database is {self._app.store.where}; look around:")
            for command in ("jobs ls", "stats", "doctor"):
                self.say(" ", f"  treadle {command} --db {shlex.quote(kept)}")
        else:
            self.say("•", "the database was temporary; to keep it: treadle demo --keep")
            self.say("•", "next: write app.py with `td = Treadle()` and an @td.job, then: treadle worker app:td")
