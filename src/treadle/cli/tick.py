"""`treadle tick`: one bounded pass."""

from __future__ import annotations

import click

from treadle import units
from treadle.cli import logs
from treadle.cli.app_loader import app_name, load_app
from treadle.cli.base import Shared, command, pass_shared
from treadle.cli.errors import PROBLEMS
from treadle.cli.params import Duration
from treadle.outcome import OutcomeKind


@command("tick", help="Run what is due, once, and end: for cron and serverless. Exits with 1 if a job failed for good.")
@click.argument("target", metavar="[APP]", required=False)
@click.option(
    "-a", "--app", metavar="MODULE:NAME", allow_from_autoenv=False, help="The app, as in app:td.  [$TREADLE_APP]"
)
@click.option("--max-jobs", type=click.IntRange(1), default=100, show_default=True, help="Claim no more than this.")
@click.option("--max-seconds", type=Duration(), default=10, help="Claim no longer than this.  [default: 10]")
@pass_shared
def tick(shared: Shared, target: str | None, app: str | None, max_jobs: int, max_seconds: float) -> None:
    treadle = load_app(shared, app_name(target or app))
    logs.set_up(0)
    report = treadle.tick(max_jobs=max_jobs, max_seconds=max_seconds)
    if shared.json:
        shared.data(report)
    else:
        kinds = {kind.value: getattr(report, kind.value) for kind in OutcomeKind}
        parts = [f"{count} {kind}" for kind, count in kinds.items() if count]
        parts += [f"{report.rescued} rescued"] if report.rescued else []
        shared.print(f"ran {units.plural(report.ran, 'job')}", f": {', '.join(parts)}" if parts else "")
        if report.next_due_at:
            shared.note((f"next due {units.format_relative(report.next_due_at)}", "dim"))
        shared.note((f"in {treadle.store.where}", "dim"))
    if report.failed:
        click.get_current_context().exit(PROBLEMS)
