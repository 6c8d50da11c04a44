"""Errors as people read them: what failed, the likely cause, the next command."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO, Any

import click
from rich.console import Console
from rich.text import Text

from treadle import errors
from treadle.cli.base import Shared

PROBLEMS, USAGE, DATABASE, NOT_FOUND, CONFLICT, TIMED_OUT, INTERRUPTED = 1, 2, 3, 4, 5, 124, 130

_CODES: list[tuple[type[BaseException], int]] = [
    (errors.JobFailed, PROBLEMS),
    (errors.JobNotFound, NOT_FOUND),
    (errors.WrongStatus, CONFLICT),
    (errors.KeyHeld, CONFLICT),
    (errors.CountMoved, CONFLICT),
    (errors.ResultTimeout, TIMED_OUT),
    (errors.StoreUnusable, DATABASE),
    (errors.StoreBusy, DATABASE),
    (errors.SchemaTooNew, DATABASE),
    (errors.SchemaTooOld, DATABASE),
    (sqlite3.Error, DATABASE),
]


class CommandError(click.ClickException):
    """An error that is printed as a message, without a traceback."""

    def __init__(self, what: str, cause: str = "", *, next: str = "", code: int = USAGE) -> None:
        super().__init__(what)
        self.cause = cause
        self.next = next
        self.exit_code = code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: IO[Any] | None = None) -> None:
        context = click.get_current_context(silent=True)
        shared = context.find_object(Shared) if context else None
        console = (shared or Shared()).err if file is None else Console(file=file)
        console.print(Text.assemble(("✗ ", "red"), self.message), soft_wrap=True)
        if self.cause:
            console.print(Text(self.cause), soft_wrap=True)
        if self.next:
            console.print(Text.assemble(("→ ", "dim"), self.next), soft_wrap=True)


def refuse_json(shared: Shared, name: str, cause: str, next: str) -> None:
    """--json is an error for a command that prints no data."""
    if shared.json_was_typed:
        raise CommandError(f"treadle {name} prints no JSON: leave --json out", cause, next=next)


@contextmanager
def caught() -> Generator[None]:
    """Errors of treadle and of the database become messages; any other is a bug and keeps its traceback."""
    try:
        yield
    except (errors.TreadleError, sqlite3.Error) as error:
        raise explained(error) from None
    except getattr(sys.modules.get("psycopg"), "Error", ()) as error:
        what = f"the database said: {' '.join(str(error).split())}"
        raise CommandError(what, next="treadle doctor", code=DATABASE) from None
    except (KeyboardInterrupt, click.Abort):
        click.echo(err=True)  # end the line of ^C or of a question
        raise CommandError("interrupted", code=INTERRUPTED) from None


def explained(error: Exception) -> CommandError:
    """An error as a message. The library's messages suggest Python; here the next step is a command."""
    what, cause, next = str(error), "", ""
    match error:
        case errors.JobNotFound():
            what = f"there is no job {error.id}"
            cause = "It was deleted or pruned, or it is in another database."
            next = "treadle jobs ls"
        case errors.WrongStatus():
            what, cause = f"cannot {error.verb} job {error.id}: it is {error.status}", _hint(error)
            next = f"treadle jobs show {error.id}"
        case errors.KeyHeld():
            what = f"cannot retry job {error.id}: its dedupe key is held by job {error.holder}"
            cause = "Only one job with a key can wait or run. Let that one end, or cancel it."
            next = f"treadle jobs show {error.holder}"
        case errors.ResultTimeout():
            what = f"job {error.id} is still {error.status}"
            cause = "It is not cancelled: it still runs, or waits for a worker."
            next = f"treadle jobs show {error.id}"
        case errors.JobFailed():
            what = f"job {error.id} {error.status}: {error.error or 'no error was recorded'}"
            next = f"treadle jobs show {error.id}"
        case errors.StoreBusy():
            what = f"{error.where} was busy for too long"
            cause = "Another process holds a lock on it: a long transaction, a backup, a debugger."
            next = "treadle doctor --quick"
        case errors.CountMoved():
            cause = "Nothing was changed."
            what = what.partition("; ")[0]
            next = "check, then repeat: treadle jobs ls FILTER"
        case errors.BadFilter():
            next = "treadle jobs ls --help   (shows an example)"
        case errors.BadCursor():
            next = "treadle jobs ls   (prints the cursor of the next page)"
        case sqlite3.Error():
            what, cause = f"the database said: {error}", "The file is damaged, or not a SQLite database."
            next = "treadle doctor"
        case _:
            what, _, cause = what.partition("; ")
    return CommandError(what, cause, next=next, code=code_of(error))


def code_of(error: BaseException) -> int:
    """The exit code of an error; by default a usage error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), USAGE)


def _hint(error: errors.WrongStatus) -> str:
    if error.verb == "delete":
        return "A worker is running it: cancel it first, and delete it when it has ended."
    if error.verb == "retry":
        return "Only a job that has ended can be retried; use run-now for one that waits."
    if error.verb == "run":
        return "Only a job that waits can be run now; use retry for one that has ended."
    return "It has already ended."
