"""Numbered SQL files, applied in order, each once."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

from treadle.errors import SchemaTooNew


class Migration(NamedTuple):
    number: int
    name: str
    sql: str


def migrations(package: str) -> list[Migration]:
    """The migrations of a store, oldest first, from the `migrations` folder of its package."""
    folder = resources.files(package) / "migrations"
    files = sorted(f.name for f in folder.iterdir() if f.name.endswith(".sql"))
    return [Migration(int(name[:4]), name.removesuffix(".sql"), (folder / name).read_text("utf-8")) for name in files]


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
