"""`treadle doctor`: what is wrong, and how to mend it."""

from __future__ import annotations

from collections import Counter

import click

from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, pass_shared
from treadle.cli.checks import checks
from treadle.cli.errors import PROBLEMS
from treadle.cli.finding import Finding, Level
from treadle.units import plural

MARKS = {Level.OK: ("✓ ", "green"), Level.WARNING: ("⚠ ", "yellow"), Level.PROBLEM: ("✗ ", "red")}


@command("doctor", help="Check the database, the workers and what waits. Exits with 1 if there is a problem.")
@click.option("--quick", is_flag=True, help="Do not read the whole of a SQLite file to check it.")
@pass_shared
def doctor(shared: Shared, quick: bool) -> None:
    app = database(shared)
    with shared.err.status("looking"):
        findings = list(checks(app, quick=quick))
    levels = Counter(finding.level for finding in findings)
    problems, warnings = levels[Level.PROBLEM], levels[Level.WARNING]
    if shared.json:
        shared.data({"where": app.store.where, "problems": problems, "warnings": warnings, "findings": findings})
    else:
        _print(shared, app.store.where, findings)
        shared.print()
        shared.print(("all is well", "green") if not problems + warnings else _sum(problems, warnings))
    if problems:
        click.get_current_context().exit(PROBLEMS)


def _print(shared: Shared, where: str, findings: list[Finding]) -> None:
    shared.print((where, "dim"))
    for finding in findings:
        shared.print(MARKS[finding.level], finding.text)
        if finding.way_out:
            shared.print(("  → ", "dim"), finding.way_out)


def _sum(problems: int, warnings: int) -> str:
    return ", ".join(plural(n, word) for n, word in ((problems, "problem"), (warnings, "warning")) if n)
