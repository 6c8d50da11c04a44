"""`treadle copy`: move jobs to another database."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from treadle.cli import copying
from treadle.cli.base import Shared, command, duration
from treadle.cli.errors import DATABASE, CommandError
from treadle.settings import database_url
from treadle.stores import open_store
from treadle.units import plural

HELP = """Copy all jobs from one database to another: SQLite, PostgreSQL or libSQL, in any direction.

Ids, payloads, attempts, results, keys, schedules, steps, waits, batches and usage stay as they are. An interrupted copy
is continued by the same command. At the end, both sides are compared row by row.

Stop the programs that use SOURCE first. Or let them work, with --follow --cutover: what has ended is copied meanwhile,
then running jobs may end, and SOURCE is closed. Whoever uses it after that gets an error that names TARGET."""


class Progress:
    """One line on stderr: rewritten on a terminal, else one line for each thing that is done."""

    def __init__(self, shared: Shared) -> None:
        self._shared, self._doing, self._is_live = shared, "", shared.err.is_terminal and not shared.quiet

    def __call__(self, doing: str, done: int, total: int) -> None:
        if self._is_live:
            click.echo(f"\r\033[K{doing}: {done:,} of {total:,}", nl=False, err=True)
        elif doing != self._doing:
            self._shared.note(f"{doing}: {total:,}")
        self._doing = doing

    def end(self) -> None:
        if self._is_live and self._doing:
            click.echo("", err=True)


@command("copy", help=HELP)
@click.argument("source")
@click.argument("target", required=False)
@click.option("--follow", is_flag=True, help="Copy what ends while SOURCE works, until few jobs are left.")
@click.option("--cutover", is_flag=True, help="Close SOURCE, so that all of its jobs are in TARGET alone.")
@click.option("--wait", type=duration, default="5m", show_default=True, help="How long running jobs may take to end.")
@click.option("--tenant", metavar="NAME", help="Only the jobs of this tenant, which has to be paused.")
@click.option("--reopen", is_flag=True, help="Undo --cutover: let SOURCE be used again. Without TARGET.")
def copy(shared: Shared, /, source: str, target: str | None, reopen: bool, **options: Any) -> None:
    here = open_store(database_url(source))
    if not (found := here.schema()):  # an older one is upgraded
        what = f"there is no database at {here.where}" if found is None else f"{here.where} has no treadle tables"
        raise CommandError(what, "Nothing was copied.", code=DATABASE)
    if reopen:
        copying.Copy(here, here, Progress(shared)).reopen()
        if not shared.printed_json({"where": here.where, "reopened": True}):
            shared.print(("✓ ", "green"), f"{here.where} can be used again")
        return
    if target is None:
        raise CommandError("the target is missing", "", next="treadle copy SOURCE TARGET")
    there, progress = open_store(database_url(target)), Progress(shared)
    try:
        done = copying.copy(here, there, progress, **options)
    except KeyboardInterrupt:
        progress.end()
        shared.note("stopped; the same command continues")
        sys.exit(130)
    finally:
        progress.end()
    shared.audit(there, "copy", f"from {here.where}", done.jobs)
    if not shared.printed_json({"source": here.where, "target": there.where, **msgspec.structs.asdict(done)}):
        rows = sum(done.rows.values())
        compared = f"{rows:,} rows compared, all the same" if rows else "they were moved before"
        shared.print(("✓ ", "green"), f"{plural(done.jobs, 'job')} in {there.where}; {compared}")
        if done.moved:
            shared.print(f"  {here.where} is closed, and names the new place")
