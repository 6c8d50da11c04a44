"""Our statements have :names, as in SQLite. What psycopg takes instead."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from treadle.stores.postgres import sql

NAME = re.compile(r"(?<![:\w]):([a-z_][a-z_0-9]*)")


@cache
def named(statement: str) -> Any:
    """With %(names)s; in what psycopg's types say is a literal."""
    return NAME.sub(r"%(\1)s", statement)


@cache
def numbered(statement: str) -> tuple[Any, tuple[str, ...]]:
    """With $1, $2 …, for a `RawCursor`; and the names in that order."""
    names = tuple(dict.fromkeys(NAME.findall(statement)))
    return NAME.sub(lambda found: f"${names.index(found[1]) + 1}", statement), names


@cache
def at_server_time(statement: str) -> str:
    """With the server's clock as :now, which need not be read first."""
    return statement.replace(":now", sql.THIS_MOMENT)
