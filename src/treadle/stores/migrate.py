"""Numbered SQL files, applied in order, each once."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple


class Migration(NamedTuple):
    number: int
    name: str
    sql: str


def migrations(package: str) -> list[Migration]:
    """The migrations of a store, oldest first, from the `migrations` folder of its package."""
    folder = resources.files(package) / "migrations"
    files = sorted(f.name for f in folder.iterdir() if f.name.endswith(".sql"))
    return [Migration(int(name[:4]), name.removesuffix(".sql"), (folder / name).read_text("utf-8")) for name in files]


def script(package: str) -> str:
    """All migrations as one SQL script, for people and for other migration tools."""
    return "\n".join(f"-- {m.name}\n\n{m.sql}" for m in migrations(package))
