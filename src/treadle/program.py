"""How the user calls treadle in this process, as recommended commands name it. Django's integration sets it."""

from __future__ import annotations

import re
from typing import NamedTuple

COMMANDS = "jobs|workers|doctor|db|stats|limits|schedules|batches|queues|tokens|(?P<takes_app>worker|tick)"
COMMAND = rf"\btreadle (?=(?:{COMMANDS})\b)"
"""One that works on a database or an app."""
BY_OWNER = "treadle db upgrade (or treadle db sql | psql)"


class Program(NamedTuple):
    """What the user types instead of `treadle`."""

    name: str = "treadle"
    app: str = ""
    """The app that it knows by itself."""
    upgrade: str = ""
    """What creates and upgrades its tables, if it is not `treadle db upgrade`."""
    by_owner: str = ""
    """What the owner of the database runs before, if the program's role may not create them."""
    checkpointed: str = ""
    """The SQLite file on which its own connections leave checkpoints to treadle."""


_here = Program()


def program() -> Program:
    return _here


def use_program(new: Program) -> None:
    global _here
    _here = new


def as_called(text: str) -> str:
    """A text whose `treadle …` commands can be pasted. `treadle worker` in backticks is only a name."""
    return _called(text, _here) if _here.app and "treadle " in text else text


def _called(text: str, here: Program) -> str:
    if here.upgrade:
        text = text.replace(BY_OWNER, f"{here.by_owner}; then: {here.upgrade}")
        text = re.sub(r"\btreadle db upgrade\b(?! --db)", here.upgrade, text)
    text = re.sub(r"\btreadle (worker|tick) app:td\b", r"treadle \1", text)
    return re.sub(rf"(?<!`)(?<!manage\.py ){COMMAND}", f"{here.name} ", text)
