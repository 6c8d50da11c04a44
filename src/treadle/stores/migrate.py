"""Numbered SQL files, applied in order, each once."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

from treadle.errors import SchemaTooNew, StoreUnusable


class Migration(NamedTuple):
    number: int
    name: str
    sql: str


def migrations(package: str) -> list[Migration]:
    """The migrations of a store, oldest first, from the `migrations` folder of its package."""
    folder = resources.files(package) / "migrations"
    files = sorted(f.name for f in folder.iterdir() if f.name.endswith(".sql"))
    return [Migration(int(name[:4]), name.removesuffix(".sql"), (folder / name).read_text("utf-8")) for name in files]


def numbers(where: str, meta: str, found: Mapping[str, int]) -> tuple[int, int]:
    """The newest migration that the tables have, and the oldest schema whose treadle can work with them, from the rows
    of the table `meta`. Without these, nobody can know what the tables are."""
    schema, oldest = found.get("schema", 0), found.get("oldest", 0)
    if schema < 1 or oldest < 1:
        problem = f"it has tables of treadle, but in {meta} schema is {schema} and oldest is {oldest}"
        way_out = f"restore the rows of {meta} from a backup, or let treadle use another database"
        raise StoreUnusable(where, problem, way_out)
    return schema, oldest


def missing(package: str, where: str, found: int, oldest: int) -> list[Migration]:
    """What a database with the schema `found` lacks.

    Raises SchemaTooNew if this treadle is too old for it: `oldest` is the oldest schema whose treadle can work with it.
    """
    known = migrations(package)
    if oldest > known[-1].number:
        raise SchemaTooNew(where, found, known[-1].number)
    return [migration for migration in known if migration.number > found]


def script(package: str) -> str:
    """All migrations as one SQL script, for people and for other migration tools."""
    return "\n".join(f"-- {m.name}\n\n{m.sql}" for m in migrations(package))
