"""Job ids on the command line: the start of one is enough."""

from __future__ import annotations

from treadle.app import Treadle
from treadle.cli.errors import CommandError
from treadle.cli.output import clean, status_name
from treadle.errors import JobNotFound
from treadle.filters import EVERYTHING
from treadle.ids import ids_from, is_id

MOST_SHOWN = 10
"""Candidates that are listed if several ids begin so."""


def find_id(app: Treadle, text: str) -> str:
    """The id that this text is, or begins. A whole id is not looked up: what needs its job says if there is none."""
    if is_id(text):
        return text
    range = ids_from(text)
    found = app.store.ids_between(*range, MOST_SHOWN + 1) if range else []
    if not found:
        raise JobNotFound(text)
    if len(found) > 1:
        raise _ambiguous(app, text, found)
    return found[0]


def _ambiguous(app: Treadle, text: str, found: list[str]) -> CommandError:
    jobs = app.jobs(EVERYTHING.replace(ids=tuple(found[:MOST_SHOWN])), limit=MOST_SHOWN)
    lines = [f"  {job.id}  {clean(job.type)}  {status_name(job)}" for job in jobs]
    lines += ["  and others"] if len(found) > MOST_SHOWN else []
    cause = "\n".join(["The newest of them:", *lines])
    return CommandError(f"{text} is the start of several job ids", cause, next="write more of the id")
