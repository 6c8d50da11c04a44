"""Tables and bars: drawn to fit on a terminal, plain and complete in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from treadle.job import STATE_OF

if TYPE_CHECKING:
    from treadle.cli.base import Shared

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
"""Characters that are left of a column that gives way."""


def style(state: str) -> str:
    return STYLES[STATE_OF[state].tone]


def status(name: str) -> Text:
    """A status or state: its mark and its name. Color only repeats them."""
    return Text(f"{STATE_OF[name].mark} {name}", style=style(name))


def clean(text: object, *, one_line: bool = True) -> str:
    """Text from a database, without what could steer a terminal."""
    kept = "" if one_line else "\n\t"
    shown = str(text)
    if one_line:
        shown = " ".join(shown.split())
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in shown)


def named(name: str) -> Text:
    """A name from a database; an empty one is a dash."""
    return Text(clean(name) or "-")


def number(value: int, style: str = "") -> Text:
    return Text(f"{value:,}", style=style if value else "dim")


def pretty(value: Any) -> str:
    """A JSON value over several lines."""
    return clean(msgspec.json.format(msgspec.json.encode(value), indent=2).decode(), one_line=False)


class Grid(Table):
    """A table without lines, one of whose columns may give way when the terminal is narrow."""

    clip: str | None = None

    def natural(self) -> dict[str, int]:
        """How wide each column would like to be."""
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
    """Print a table. Nothing but the column that may give way is ever cut: ids are there to be copied."""
    widths = grid.natural()
    wanted = sum(widths.values()) + 2 * len(widths)
    if grid.clip is not None and shared.out.is_terminal and wanted > shared.out.width:
        room = max(LEAST, widths[grid.clip] - (wanted - shared.out.width))
        next(column for column in grid.columns if column.header == grid.clip).max_width = room
        wanted += room - widths[grid.clip]
    shared.print_wide(grid, wanted)


def bar(value: int, most: int, width: int = 12) -> str:
    """A bar as long as its share of the longest, to an eighth of a character; something is never nothing."""
    if not value or not most:
        return ""
    eighths = max(1, round(value / most * width * 8))
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
