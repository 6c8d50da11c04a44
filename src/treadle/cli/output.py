"""Tables, bars and log lines: drawn to fit on a terminal, plain and complete in a pipe."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from rich.cells import cell_len
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from treadle import clock, units, views
from treadle.cli.base import Shared
from treadle.job import STATE_OF, Job, state_of
from treadle.log_records import LogSettings
from treadle.logs import printable
from treadle.reasons import Reason
from treadle.redact import Redactor
from treadle.registry import JobType
from treadle.schedule_diagnosis import ScheduleReason
from treadle.stores.rows import QueueStats
from treadle.views import JobOut, WorkerOut

STYLES = {"neutral": "cyan", "calm": "magenta", "warn": "yellow", "accent": "blue"}  # the tones of states
STYLES |= {"good": "green", "bad": "red", "muted": "dim"}
Columns = Mapping[str, Sequence[Text | str]]  # the cells of each column of a table, by its head
AFTER_HOLDER = "when its key is free"  # a successor, which waits for no time
LEAST, WIDEST = 20, 10_000  # characters that a clipped column keeps, and that a table may have


def style(state: str) -> str:
    return STYLES[STATE_OF[state].tone]


def status(name: str) -> Text:
    """A status or state: its mark and its name. Color only repeats them."""
    return Text(f"{STATE_OF[name].mark} {name}", style=style(name))


def job_status(job: JobOut) -> Text:
    """Its status, and of what is pending for later, why: scheduled or retrying."""
    return status(job.status if job.state == "queued" else job.state)


def status_name(job: Job) -> str:
    """The same as a word."""
    state = state_of(job, clock.to_datetime(clock.now()))
    return job.status if state == "queued" else state


def clean(text: object, *, one_line: bool = True) -> str:
    """Text from a database, without characters that could control a terminal."""
    return printable(" ".join(str(text).split())) if one_line else printable(str(text), keep="\n\t")


def type_of(row: QueueStats) -> str:
    """The type of the jobs in a row, or how many have no row of their own."""
    return f"{row.others:,} others" if row.others else row.type


def number(value: int, style: str = "") -> Text:
    return Text(f"{value:,}", style=style if value else "dim")


def pretty(value: Any) -> str:
    return clean(msgspec.json.format(msgspec.json.encode(value), indent=2).decode(), one_line=False)


def table(columns: Columns, right: Collection[str] = ()) -> Table:
    """A table without lines. The columns whose heads are in `right` are aligned to the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in columns:
        made.add_column(head, justify="right" if head in right else "left", no_wrap=True, overflow="ellipsis")
    for row in zip(*columns.values(), strict=True):
        made.add_row(*(cell if isinstance(cell, Text) else Text(clean(cell)) for cell in row))
    return made


def show(shared: Shared, columns: Columns, right: Collection[str] = (), clip: str = "", empty: str = "") -> None:
    """Print a table, or `empty` if it has no rows. Only the column `clip` is ever cut to fit: people copy ids."""
    if empty and not any(columns.values()):
        shared.note(shared.hint(empty))
        return
    grid, console = table(columns, right), shared.out
    wanted = console.measure(grid, options=console.options.update(max_width=WIDEST)).maximum
    if clip in columns and console.is_terminal and wanted > console.width:
        natural = max(cell_len(str(cell)) for cell in (clip, *columns[clip]))
        room = max(LEAST, natural - (wanted - console.width))
        grid.columns[list(columns).index(clip)].max_width = room
        wanted += room - natural
    shared.print_wide(grid, wanted)


def bar(value: int, most: int, width: int = 12) -> str:
    """A bar as long as its share of the longest, to an eighth of a character; what is not 0 is never empty."""
    if not value or not most:
        return ""
    eighths = max(1, round(value / most * width * 8))
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def section(shared: Shared, heading: str, lines: Iterable[str] = ()) -> None:
    shared.print("\n", (heading, "bold"))
    for line in lines:
        shared.print("  ", line)


def reasons(shared: Shared, found: Iterable[Reason | ScheduleReason]) -> None:
    """Each with the way out. The first is the deciding one."""
    for n, reason in enumerate(found):
        shared.print(("• ", "dim"), (clean(reason.text), "bold" if n == 0 else ""))
        shared.print("  → ", (clean(shared.hint(reason.way_out)), "dim"))


def stored(shared: Shared, job: Job, hide: Redactor, note: str = "") -> None:
    """Print a new job: its id, and for people where it is."""
    if not shared.printed_json(views.job(job, hide)):
        shared.note(("✓ ", "green"), f"{clean(job.type)} {job.id} stored in queue {clean(job.queue)}{note}")
        shared.print(job.id)


@contextmanager
def progress(shared: Shared, doing: str, total: int) -> Generator[Callable[[int], None]]:
    """A progress bar on stderr, if that is a terminal. Call what it yields with how many are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = shared.quiet or not shared.err.is_terminal or not total
    with Progress(*columns, console=shared.err, disable=hidden) as shown:
        task = shown.add_task(doing, total=total)
        yield lambda done: shown.update(task, completed=done)


def age(at: int | None, now: int) -> str:
    """How long ago a time of the database is; nothing if there is none."""
    return "" if at is None else units.format_duration((now - at) / clock.SECOND)


def workers(rows: Sequence[WorkerOut], now: int, more: Columns | None = None, *, most: int, idle: str) -> Columns:
    """Workers, how many of their slots are busy with what (`most` types), and their heartbeats."""
    return {
        "WORKER": [Text.assemble(("● ", "green") if row.live else ("◌ ", "red"), clean(row.name)) for row in rows],
        "BUSY": [f"{row.running}/{row.concurrency}" for row in rows],
        "DOING": [Text(_doing(row, now, most) or idle, style="" if row.doing else "dim") for row in rows],
        **(more or {}),
        "HEARTBEAT": [_heartbeat(row) for row in rows],
    }


def _heartbeat(row: WorkerOut) -> Text:
    silent = units.format_duration(row.silent_for)
    if row.live and row.quiet_for is not None:
        return Text(f"{silent} ago: quiet for {units.format_duration(row.quiet_for)}", style="yellow")
    if row.stalled_for is not None:
        return Text(f"{silent} ago: stalled for {units.format_duration(row.stalled_for)}", style="yellow")
    return Text(f"{silent} ago") if row.live else Text(f"{silent} ago: lost", style="red")


def _doing(row: WorkerOut, now: int, most: int) -> str:
    """Each type that a worker runs, how many of it, and for how long the first."""
    parts = [
        f"{clean(some.type)}{f' ×{some.count}' if some.count > 1 else ''}"  # noqa: RUF001
        f" for {units.format_duration((clock.to_datetime(now) - some.since).total_seconds())}"
        for some in row.doing
    ]
    return ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")


def set_up_logs(verbose: int, types: Iterable[JobType] = (), format: Literal["text", "json"] = "text") -> None:
    """Warnings to stderr, with -v everything that happens. What `types` keep of their logs gets through, and is not
    printed for that."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    LogSettings(level, min((one.logs for one in types if one.logs is not None), default=level), format).set_up()
