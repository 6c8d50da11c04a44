"""What a store has from SQLite's tables, wherever they are: in a file, or on a server that speaks libSQL."""

from __future__ import annotations

from treadle.stores.sql.fork_safe import D
from treadle.stores.sql.store import SQLStore
from treadle.stores.sqlite import schema

OLDEST_SQLITE = (3, 38)
"""The first with `->>`; STRICT tables came with 3.37, RETURNING with 3.35."""


class SQLiteTables(SQLStore[D]):
    """Jobs in SQLite's tables."""

    def newest_schema(self) -> int:
        return schema.newest_schema()

    def upgrade(self) -> int:
        self.open()  # which does it by itself
        return schema.newest_schema()

    def schema_sql(self) -> str:
        return schema.schema_sql()

    def compact(self) -> int:
        return 0  # one writer at a time: everything is added up as it is written
