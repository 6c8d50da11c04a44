"""Tables, bars and log lines: drawn to fit on a terminal, plain and complete in a pipe."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from rich.cells import cell_len
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from treadle import clock, units
from treadle.job import STATE_OF

if TYPE_CHECKING:
    from treadle.cli.base import Shared
    from treadle.views import WorkerOut

STYLES = {
    "neutral": "cyan",
    "calm": "magenta",
    "warn": "yellow",
    "accent": "blue",
    "good": "green",
    "bad": "red",
    "muted": "dim",
}
"""The tones of states."""
LEAST = 20
"""Characters that the column that is clipped keeps."""


def style(state: str) -> str:
    return STYLES[STATE_OF[state].tone]


def status(name: str) -> Text:
    """A status or state: its mark and its name. Color only repeats them."""
    return Text(f"{STATE_OF[name].mark} {name}", style=style(name))


def clean(text: object, *, one_line: bool = True) -> str:
    """Text from a database, without characters that could control a terminal."""
    kept = "" if one_line else "\n\t"
    shown = str(text)
    if one_line:
        shown = " ".join(shown.split())
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in shown)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return close[0] if close else None


def named(name: str) -> Text:
    """A name from a database; an empty one is a dash."""
    return Text(clean(name) or "-")


def number(value: int, style: str = "") -> Text:
    return Text(f"{value:,}", style=style if value else "dim")


def pretty(value: Any) -> str:
    """A JSON value over several lines."""
    return clean(msgspec.json.format(msgspec.json.encode(value), indent=2).decode(), one_line=False)


class Grid(Table):
    """A table without lines, one of whose columns is clipped when the terminal is narrow."""

    clip: str | None = None

    def natural(self) -> dict[str, int]:
        """How wide each column is without clipping."""
        return {
            str(c.header): max((cell_len(str(text)) for text in (c.header, *c._cells)), default=0) for c in self.columns
        }


def table(*columns: str, right: Sequence[str] = (), clip: str | None = None) -> Grid:
    made = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    made.clip = clip
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=True, overflow="ellipsis")
    return made


def show(shared: Shared, grid: Grid) -> None:
    """Print a table. Only the column that may be clipped is ever cut: people copy ids."""
    widths = grid.natural()
    wanted = sum(widths.values()) + 2 * len(widths)
    if grid.clip is not None and shared.out.is_terminal and wanted > shared.out.width:
        room = max(LEAST, widths[grid.clip] - (wanted - shared.out.width))
        next(column for column in grid.columns if column.header == grid.clip).max_width = room
        wanted += room - widths[grid.clip]
    shared.print_wide(grid, wanted)


def bar(value: int, most: int, width: int = 12) -> str:
    """A bar as long as its share of the longest, to an eighth of a character; what is not 0 is never empty."""
    if not value or not most:
        return ""
    eighths = max(1, round(value / most * width * 8))
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


@contextmanager
def progress(shared: Shared, doing: str, total: int) -> Generator[Callable[[int], None]]:
    """A progress bar on stderr, if that is a terminal. Call what it yields with how many are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = shared.quiet or not shared.err.is_terminal or not total
    with Progress(*columns, console=shared.err, disable=hidden) as shown:
        task = shown.add_task(doing, total=total)
        yield lambda done: shown.update(task, completed=done)


def worker(row: WorkerOut) -> tuple[Text, Text, Text]:
    """A worker's name, how many of its slots are busy, and its heartbeat."""
    silent = units.format_duration(row.silent_for)
    return (
        Text.assemble(("● ", "green") if row.live else ("◌ ", "red"), clean(row.name)),
        Text(f"{row.running}/{row.concurrency}"),
        Text(f"{silent} ago") if row.live else Text(f"{silent} ago: lost", style="red"),
    )


def doing(row: WorkerOut, now: int, most: int = 1000) -> str:
    """Each type that a worker runs, how many of it, and for how long the first."""
    parts = [
        f"{clean(some.type)}{f' ×{some.count}' if some.count > 1 else ''}"  # noqa: RUF001
        f" for {units.format_duration((clock.to_datetime(now) - some.since).total_seconds())}"
        for some in row.doing
    ]
    return ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")


class LogLines(logging.Formatter):
    """The text of a job's error must not control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record), one_line=False)


def set_up_logs(verbose: int) -> None:
    """Warnings to stderr, with -v everything that happens; an app that sets up its own logging keeps it."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines("%(asctime)s %(levelname)-7s %(process)d %(message)s", "%H:%M:%S"))
    logging.basicConfig(handlers=[handler], level=level)
    logging.getLogger("treadle").setLevel(level)
