"""The command line. A command is imported when it is called, so that `treadle --help` is fast."""

from __future__ import annotations

import importlib
import io
import sys
from itertools import groupby
from typing import Any, NamedTuple

import click

from treadle.cli.base import Shared, shared_options
from treadle.cli.errors import caught
from treadle.error_text import nearest
from treadle.program import program


class Lazy(NamedTuple):
    """Where a command is, and its line in the help."""

    section: str
    module: str
    help: str


COMMANDS = {
    "demo": Lazy("Try it", "demo", "Run a real queue for a few seconds: workers, a kill -9, a table of what happened."),
    "bench": Lazy("Try it", "bench", "Measure how fast treadle is here."),
    "worker": Lazy("Work", "worker", "Run jobs until stopped."),
    "tick": Lazy("Work", "worker", "Run the jobs that are due, once, and end. For cron and serverless."),
    "bullmq-worker": Lazy("Work", "bullmq", "Run jobs from Redis, as a worker of BullMQ."),
    "enqueue": Lazy("Work", "enqueue", "Store a job by the name of its type."),
    "stats": Lazy("Look", "stats", "Count jobs, and show how long they wait and what is wrong."),
    "top": Lazy("Look", "top", "Watch the queue on one screen."),
    "workers": Lazy("Look", "workers", "List workers and what they run; let one be quiet."),
    "queues": Lazy("Look", "queues", "List what waits and what runs; pause, resume and drain."),
    "limits": Lazy("Look", "limits", "List limits and how much of each is used; set and unset them."),
    "jobs": Lazy("Look", "jobs", "List, show, explain, clone, retry, run now, cancel and delete jobs."),
    "schedules": Lazy("Look", "schedules", "List, explain, pause, resume, run, backfill and delete schedules."),
    "batches": Lazy("Look", "batches", "List batches, and show what holds one up."),
    "doctor": Lazy("Look", "doctor", "Find what is wrong, and how to fix it."),
    "dashboard": Lazy("Look", "dashboard", "Serve the dashboard and the HTTP API."),
    "tokens": Lazy("Maintain", "dashboard", "Create, list and revoke tokens for the HTTP API."),
    "copy": Lazy("Maintain", "copy", "Copy or move all jobs to another database."),
    "db": Lazy("Maintain", "db", "Inspect, upgrade and prune the database."),
}

HELP = """Durable background jobs for Python, in the database you already have.

The database is --db, else that of the app --app, else $TREADLE_URL, else that of $TREADLE_APP, else `db` or `app` under
[tool.treadle] in ./pyproject.toml, else ./treadle.db."""
EPILOG = """Every option can be set by a variable: --concurrency of `treadle worker` is $TREADLE_WORKER_CONCURRENCY.
Exit codes: 0 success, 1 problems found or the job failed, 2 usage, 3 no usable database, 4 not found, 5 conflict,
124 waited too long, 130 interrupted."""


class Root(click.Group):
    """Finds a command by its name, and turns errors of treadle into a message and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"{__name__}.{COMMANDS[cmd_name].module}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not ctx.resilient_parsing and (near := nearest(args[0], COMMANDS)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for section, names in groupby(COMMANDS, lambda name: COMMANDS[name].section):
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), COMMANDS[name].help) for name in names])

    def invoke(self, ctx: click.Context) -> Any:
        with caught():
            return super().invoke(ctx)


SETTINGS = {"auto_envvar_prefix": "TREADLE", "help_option_names": ["-h", "--help"], "max_content_width": 100}
cli = Root(help=HELP, epilog=EPILOG, context_settings=SETTINGS)
click.version_option(package_name="treadle", message="treadle %(version)s")(cli)
cli.params += shared_options(variables=True)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a ✓ that the terminal cannot show must not fail the command
    cli(prog_name=program().name, obj=Shared())
