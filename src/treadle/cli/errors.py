"""Errors as people read them: what failed, the likely cause, the next command."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

import click
from rich.console import Console
from rich.text import Text

from treadle import errors
from treadle.cli.base import Shared

PROBLEMS, USAGE, DATABASE, NOT_FOUND, CONFLICT, TIMED_OUT, INTERRUPTED = 1, 2, 3, 4, 5, 124, 130


class Explanation(NamedTuple):
    """How a command reports an error; {0} is the error. Without a `what`, the error's own text is used."""

    code: int
    what: str = ""
    cause: str = ""
    next: str = ""


DECLARED = "cannot delete schedule {0.name}: the code of a live worker declares it"
DAMAGED = "The file is damaged, or not a SQLite database."
ELSEWHERE = "It was deleted or pruned, or it is in another database."
HELD = "{0.problem}: its dedupe key is held by job {0.holder}"
LOCKED = "Another process holds a lock on it: a long transaction, a backup, a debugger."
NO_SCHEDULE = "there is no schedule {0.name}"
NO_BATCH = "there is no batch {0.name}"
NOT_STOPPED = "It is not cancelled: it still runs, or waits for a worker."
ONE_PER_KEY = "Only one job with a key can wait or run. Let that one end, or cancel it."
REMOVE_IT = "Remove it from the code and restart the workers, or pause it."
REPEAT = "check, then repeat: treadle jobs ls FILTER"
STOPPED = "It was stopped or declared dead, or the start of its id fits several."
SHOW = "treadle jobs show {0.id}"
EXPLANATIONS: dict[type[Exception], Explanation] = {
    errors.JobNotFound: Explanation(NOT_FOUND, "there is no job {0.id}", ELSEWHERE, "treadle jobs ls"),
    errors.NoSuchWorker: Explanation(NOT_FOUND, "no worker {0.worker!r} is registered", STOPPED, "treadle workers ls"),
    errors.UnknownLimit: Explanation(NOT_FOUND, next="treadle limits ls"),
    errors.WrongStatus: Explanation(CONFLICT, "cannot {0.verb} job {0.id}: it is {0.status}", next=SHOW),
    errors.KeyHeld: Explanation(CONFLICT, HELD, ONE_PER_KEY, "treadle jobs show {0.holder}"),
    errors.ScheduleNotFound: Explanation(NOT_FOUND, NO_SCHEDULE, next="treadle schedules ls"),
    errors.BatchNotFound: Explanation(NOT_FOUND, NO_BATCH, next="treadle batches ls"),
    errors.ScheduleDeclared: Explanation(CONFLICT, DECLARED, REMOVE_IT, "treadle schedules pause {0.name}"),
    errors.CountMoved: Explanation(CONFLICT, cause="Nothing was changed.", next=REPEAT),
    errors.ResultTimeout: Explanation(TIMED_OUT, "job {0.id} is still {0.status}", NOT_STOPPED, SHOW),
    errors.JobFailed: Explanation(PROBLEMS, "{0}", next=SHOW),
    errors.StoreBusy: Explanation(DATABASE, "{0.where} was busy for too long", LOCKED, "treadle doctor --quick"),
    **dict.fromkeys((errors.StoreUnusable, errors.SchemaTooNew, errors.SchemaTooOld), Explanation(DATABASE)),
    errors.BadFilter: Explanation(USAGE, "{0}", next="treadle jobs ls --help   (shows an example)"),
    errors.BadCursor: Explanation(
        USAGE, "{0}", next="leave --cursor out for the first page, which prints the next one"
    ),
    sqlite3.Error: Explanation(DATABASE, "the database reports: {0}", DAMAGED, "treadle doctor"),
    Exception: Explanation(USAGE),
}
HINTS = {  # what to do, by the verb that a job's status does not allow
    "delete": "A worker is running it: cancel it first, and delete it when it has ended.",
    "retry": "Only a job that has ended can be retried; use run-now for one that waits.",
    "reschedule": "Only a job that waits can be rescheduled; use retry for one that has ended.",
    "run": "Only a job that waits can be run now; use retry for one that has ended.",
}


class CommandError(click.ClickException):
    """An error that is printed as a message, without a traceback. `next` has one line for each way out."""

    def __init__(self, what: str, cause: str = "", *, next: str = "", code: int = USAGE) -> None:
        super().__init__(what)
        context = click.get_current_context(silent=True)  # when it is shown, there is none any more
        self._shared = (context.find_object(Shared) if context else None) or Shared()
        self.cause, self.next = cause, next
        self.exit_code = code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: IO[Any] | None = None) -> None:
        console = self._shared.err if file is None else Console(file=file)
        cause, next = self._shared.hint(self.cause), self._shared.hint(self.next)
        ways_out = [("→ ", "dim", line) for line in next.splitlines()]
        for mark, style, text in (("✗ ", "red", self.message), ("", "", cause), *ways_out):
            if text:
                console.print(Text.assemble((mark, style), text), soft_wrap=True)


def confirm(refusal: str, question: str) -> None:
    """Ask, if there is a terminal. Raises, and nothing is changed, unless the answer is yes."""
    if not sys.stdin.isatty():
        raise CommandError(refusal, "There is no terminal to ask on.", next="add --yes")
    if not click.confirm(question, err=True):
        raise CommandError("nothing was changed", code=PROBLEMS)


def refuse_json(shared: Shared, name: str, cause: str, next: str) -> None:
    """--json is an error for a command that prints no data."""
    if shared.json_was_typed:
        raise CommandError(f"treadle {name} prints no JSON: leave --json out", cause, next=next)


def refuse_windows(what: str, next: str = "treadle tick app:td     (from the task scheduler)") -> None:
    """For what needs signals and files that processes share."""
    if sys.platform == "win32":
        raise CommandError(f"{what} runs on Linux and macOS, not on Windows", next=next)


@contextmanager
def caught() -> Generator[None]:
    """Errors of treadle and of the database become messages; any other is a bug and keeps its traceback."""
    try:
        yield
    except (errors.TreadleError, sqlite3.Error) as error:
        raise explained(error) from None
    except getattr(sys.modules.get("psycopg"), "Error", ()) as error:
        text = " ".join(str(error).split())
        raise CommandError(f"the database reports: {text}", next="treadle doctor", code=DATABASE) from None
    except (KeyboardInterrupt, click.Abort):
        click.echo(err=True)  # end the line of ^C or of a question
        raise CommandError("interrupted", code=INTERRUPTED) from None


def explained(error: Exception) -> CommandError:
    """An error as a message. The library's messages suggest Python; here the next step is a command."""
    known = next(found for kind, found in EXPLANATIONS.items() if isinstance(error, kind))
    what, _, cause = (known.what.format(error), "", "") if known.what else str(error).partition("; ")
    if isinstance(error, errors.WrongStatus):
        cause = HINTS.get(error.verb, "It has already ended.")
    return CommandError(what, known.cause or cause, next=known.next.format(error), code=known.code)
