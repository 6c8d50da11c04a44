"""What the server says about itself: settings, sessions and rows that decide how well a queue runs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from treadle import clock
from treadle.stores.postgres.roles import OF_ALL, OF_TENANTS

if TYPE_CHECKING:
    from treadle.stores.postgres.connection import Database, Transaction

HEARD_WITHIN = 2.0
"""Seconds that a notification may take."""

SETTINGS = """
SELECT name, setting FROM pg_settings
 WHERE name IN ('autovacuum', 'fsync', 'full_page_writes', 'max_connections', 'server_version', 'synchronous_commit')
"""

# Sessions of all databases; pg_stat_activity would hide those of other users.
SESSIONS = "SELECT coalesce(sum(numbackends), 0)::int FROM pg_stat_database"

# The oldest open transaction, prepared ones too: none of the rows that died since can be removed.
OLDEST = """
SELECT * FROM (
    SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds,
           concat('pid ', pid, ' of ', usename, ', ', state) AS who,
           concat('SELECT pg_terminate_backend(', pid, ')') AS how
      FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
    UNION ALL
    SELECT extract(epoch FROM clock_timestamp() - prepared)::float8, concat('prepared by ', owner),
           concat('ROLLBACK PREPARED ', quote_literal(gid))
      FROM pg_prepared_xacts WHERE database = current_database()) t
 ORDER BY seconds DESC LIMIT 1
"""

NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

ROLE = """
SELECT current_user, rolsuper, pg_has_role('pg_read_all_stats', 'USAGE') FROM pg_roles WHERE rolname = current_user
"""

# The rights of [[table, rights], …] that this role lacks.
LACKING = """
SELECT r || ' on ' || (v ->> 0) FROM jsonb_array_elements(CAST(:wanted AS text)::jsonb) v
 CROSS JOIN LATERAL regexp_split_to_table(v ->> 1, ', ') r
 WHERE NOT has_table_privilege('treadle.' || (v ->> 0), r)
UNION ALL
SELECT 'USAGE on sequence lease' WHERE NOT has_sequence_privilege('treadle.lease', 'USAGE')
"""

DEAD = """
SELECT relname, n_dead_tup FROM pg_stat_all_tables WHERE schemaname = 'treadle' AND relname IN ('ready', 'leases')
"""

NOT_VACUUMED = """
SELECT relname FROM pg_class WHERE relnamespace = 'treadle'::regnamespace AND relkind = 'r'
   AND array_to_string(reloptions, ' ') ~* 'autovacuum_enabled=(off|false|0|no)'
"""


class Diagnostics(msgspec.Struct, frozen=True, kw_only=True):
    settings: dict[str, str]
    sessions: int
    oldest: tuple[float, str, str] | None
    """The oldest transaction: its age in seconds, its user, and how to end it."""
    role: str
    is_superuser: bool
    sees_all_sessions: bool
    lacking: list[str]
    """Rights that a worker needs and this role lacks."""
    dead_rows: dict[str, int]
    not_vacuumed: list[str]
    skew: float
    """Seconds that the server's clock is before this host's."""
    is_pooled: bool
    """Whether a pooler is in between."""
    hears: bool
    """Whether notifications arrive: behind a pooler, only in session mode."""


def checkup(database: Database) -> Diagnostics:
    return database.read("other", lambda tx: _ask(database, tx))


def _ask(database: Database, tx: Transaction) -> Diagnostics:
    role, is_superuser, sees_all = tx.execute(ROLE).fetchone()
    wanted = [(table, rights.worker) for table, rights in {**OF_TENANTS, **OF_ALL}.items()]
    return Diagnostics(
        settings=dict(tx.execute(SETTINGS).fetchall()),
        sessions=tx.value(SESSIONS),
        oldest=tx.execute(OLDEST).fetchone(),
        role=role,
        is_superuser=is_superuser,
        sees_all_sessions=sees_all,
        lacking=[row[0] for row in tx.execute(LACKING, {"wanted": msgspec.json.encode(wanted).decode()})],
        dead_rows=dict(tx.execute(DEAD).fetchall()),
        not_vacuumed=[row[0] for row in tx.execute(NOT_VACUUMED)],
        skew=_skew(tx),
        is_pooled=tx.connection.is_pooled,
        hears=_hears(database),
    )


def _skew(tx: Transaction) -> float:
    """By the quickest of three responses: a slow one says little."""
    tries: list[tuple[int, float]] = []
    for _ in range(3):
        asked = clock.now()
        server = int(tx.value(NOW))
        answered = clock.now()
        tries.append((answered - asked, (server - (asked + answered) / 2) / clock.SECOND))
    return min(tries)[1]


def _hears(database: Database) -> bool:
    """On a channel of our own, so that no worker wakes up for it."""
    with database.connect() as listener:
        listener.execute("LISTEN treadle_test")
        database.write("other", lambda tx: tx.execute("NOTIFY treadle_test"))
        return any(True for _ in listener.notifies(timeout=HEARD_WITHIN, stop_after=1))
