"""For an Alembic `env.py`: autogenerate leaves treadle's tables alone, in whichever database they share with yours.

context.configure(connection=connection, target_metadata=metadata, include_name=treadle_alembic.include_name)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEMA, PREFIX = "treadle", "treadle_"
"""Where the tables are: on PostgreSQL in a schema of their own, on SQLite with this prefix."""


def include_name(name: str | None, type_: str, parent_names: Mapping[Any, str | None]) -> bool:
    """Whether Alembic is to look at this schema or table. If you have an `include_name`, call this in it."""
    if type_ == "schema":
        return name != SCHEMA
    if parent_names.get("schema_name") == SCHEMA:
        return False
    return type_ != "table" or name is None or not name.startswith(PREFIX)
