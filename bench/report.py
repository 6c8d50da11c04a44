"""The results: one row per question, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.machine import Machine
from bench.measure import Sample, ratio

COLUMNS = {" ": 0, "measured": 0, "spread": 130, "compared with": 110, "ratio": 0, "target": 0, "": 0}
"""Each column, and the width that a terminal needs to show it."""


class Target(msgspec.Struct, frozen=True):
    """The target: a ratio of at least or at most a number, or a value below one."""

    ratio: float | None = None
    below: float | None = None
    at_most: float | None = None

    def met(self, row: ReportRow) -> bool:
        if self.ratio is not None:
            return row.ratio is not None and row.ratio >= self.ratio
        if self.at_most is not None:
            return row.ratio is not None and row.ratio <= self.at_most
        return self.below is not None and row.value < self.below

    def __str__(self) -> str:
        if self.ratio is not None:
            return f"≥ {self.ratio:g}"
        return f"≤ {self.at_most:g}" if self.at_most is not None else f"< {self.below:g}"


class ReportRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer to one question. `low` and `high` are the spread of its repetitions."""

    section: str
    key: str
    what: str
    unit: str
    value: float
    low: float
    high: float
    compared_with: str = ""
    """What ran alternately with it, for comparison."""
    ceiling: float | None = None
    ratio: float | None = None
    target: str | None = None
    met: bool | None = None

    @classmethod
    def of(
        cls,
        section: str,
        key: str,
        what: str,
        unit: str,
        sample: Sample,
        compared_with: tuple[str, Sample] | None = None,
        target: Target | None = None,
    ) -> Self:
        value, low, high = sample.median, sample.low, sample.high
        row = cls(section=section, key=key, what=what, unit=unit, value=value, low=low, high=high)
        if compared_with is not None:
            row.compared_with, other = compared_with
            row.ceiling, row.ratio = other.median, ratio(sample, other).median
        if target is not None:
            row.target, row.met = str(target), target.met(row)
        return row


def as_json(machine: Machine, rows: Sequence[ReportRow], profile: Any) -> str:
    """Everything, for programs."""
    found = {"machine": machine, "rows": rows, "profile": profile}
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()


def show(console: Console, machine: Machine, rows: Sequence[ReportRow]) -> None:
    """Everything, for people."""
    console.print()
    for line in machine.lines():
        console.print(Text(line, style="dim"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    shown = [name for name, width in COLUMNS.items() if console.width >= width]
    for name in shown:
        table.add_column(name, justify="left" if name in (" ", "target", "") else "right", no_wrap=True)
    for i, row in enumerate(rows):
        if i == 0 or rows[i - 1].section != row.section:
            table.add_row()
            table.add_row(Text(row.section, style="bold"))
        table.add_row(*(_cells(row)[name] for name in shown))
    console.print(table)
    console.print()
    missed = [row for row in rows if row.met is False]
    judged = sum(row.met is not None for row in rows)
    style = "yellow" if missed else "green"
    console.print(Text(f"{judged - len(missed)} of {judged} targets met", style=style) if judged else Text(""))
    for row in missed:
        console.print(Text(f"  missed: {row.section}: {row.what}", style="yellow"))


def _cells(row: ReportRow) -> dict[str, Text]:
    spread = f"{_number(row.low)} to {_number(row.high)}" if row.high > row.low else ""
    met = Text("✓", style="green") if row.met else Text("✗ missed", style="bold yellow")
    return {
        " ": Text(f"  {row.what}"),
        "measured": Text(f"{_number(row.value)} {row.unit}"),
        "spread": Text(spread, style="dim"),
        "compared with": Text(
            "" if row.ceiling is None else f"{row.compared_with} {_number(row.ceiling)}", style="dim"
        ),
        "ratio": Text("" if row.ratio is None else f"{row.ratio:.2f}"),
        "target": Text(row.target or "", style="dim"),
        "": Text("") if row.met is None else met,
    }


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
