"""`treadle jobs logs`: what the handlers of a job have logged."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click
import msgspec

from treadle import units, views
from treadle.app import Treadle
from treadle.cli import completion
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, reveals
from treadle.cli.output import clean
from treadle.log_lines import LogLine

LOOK_AGAIN = 0.5
"""Seconds between two looks for new lines."""
STYLES = {"DEBUG": "dim", "WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}
HELP = """Print what the handlers of a job have logged, attempt by attempt.

With --follow, go on until the job has ended; with --json, too, each line is an object of its own."""


@command("logs", help=HELP)
@click.argument("id", shell_complete=completion.ids)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@reveals
def logs(shared: Shared, id: str, follow: bool) -> None:
    app = database(shared)
    hide = shared.redactor(app)
    found = (views.log_line(line, hide) for line in _lines(app, completion.find_id(app, id), follow))
    if shared.json and not follow:
        shared.printed_json(views.log_page(list(found), 0))
        return
    attempt = 0
    for line in found:
        if shared.json:
            click.echo(msgspec.json.encode(line))
            continue
        if line.line == 1 or line.attempt != attempt:
            attempt = line.attempt
            shared.print((f"attempt {attempt}", "bold"))
        _print(shared, line)


def _lines(app: Treadle, id: str, follow: bool) -> Iterator[LogLine]:
    """All lines; if you follow it, until the job has ended."""
    seen, page = 0, 1_000
    while True:
        job = completion.find_job(app, id)  # first: after it has ended, there are no new lines
        some = app.logs(id, seen, page)
        seen += len(some)
        yield from some
        if len(some) < page:
            if not follow or job.status.is_final:
                return
            time.sleep(LOOK_AGAIN)


def _print(shared: Shared, line: LogLine) -> None:
    first, *others = clean(line.message, one_line=False).split("\n")
    at = units.format_local(line.at)
    shared.print((at, "dim"), "  ", (f"{clean(line.level):<8}", STYLES.get(line.level, "")), first)
    for other in others:
        shared.print(" " * (len(at) + 10), other)
