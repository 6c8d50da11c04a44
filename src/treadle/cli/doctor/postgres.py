"""Checks of a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.cli.doctor import Finding, Level
from treadle.cli.output import clean
from treadle.stores.base import Store
from treadle.stores.postgres.diagnostics import Diagnostics
from treadle.stores.postgres.store import PostgresStore
from treadle.units import format_duration, plural

LONG_TRANSACTION = 600.0
"""Seconds. While it is open, no row that died since can be removed, and claims must skip more and more of them."""
MANY_DEAD = 100_000  # rows: ten times as many as autovacuum waits for
MANY_SESSIONS, TOO_MANY_SESSIONS = 0.8, 0.95
WRONG_CLOCK = 5.0


def checks(store: Store) -> Iterator[Finding]:
    """All that the server reports of itself."""
    assert isinstance(store, PostgresStore)
    found = store.checkup()
    yield Finding("server", "ok", f"PostgreSQL {clean(found.settings['server_version'])}")
    for check in (_role, _durable, _vacuum, _transactions, _dead, _sessions, _listen, _clock):
        yield check(found)


def _role(found: Diagnostics) -> Finding:
    role = clean(found.role)
    if found.lacking:
        lacks = ", ".join(found.lacking[:3]) + (", …" if len(found.lacking) > 3 else "")
        text = f"role {role} lacks what a worker needs: {lacks}"
        return Finding("role", "warning", text, "treadle db roles, and GRANT treadle_worker TO it")
    more = ", and far more: it is a superuser" if found.is_superuser else ""
    return Finding("role", "ok", f"role {role} may do what a worker does{more}")


def _durable(found: Diagnostics) -> Finding:
    names = ("fsync", "full_page_writes", "synchronous_commit")
    off = [name for name in names if found.settings[name] == "off"]
    if not off:
        return Finding("durable", "ok", f"fsync on, synchronous_commit {found.settings['synchronous_commit']}")
    loses = "can lose the last moments" if off == ["synchronous_commit"] else "can ruin the database"
    text = f"{', '.join(off)} off: a crash of the server's machine {loses}"
    return Finding("durable", "warning", text, "turn it on, unless the jobs can be made again")


def _vacuum(found: Diagnostics) -> Finding:
    if found.settings["autovacuum"] != "on":
        text = "autovacuum is off: tables of a queue fill up with dead rows within hours"
        return Finding("autovacuum", "problem", text, "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()")
    if found.not_vacuumed:
        tables = ", ".join(f"treadle.{name}" for name in found.not_vacuumed)
        way_out = f"ALTER TABLE treadle.{found.not_vacuumed[0]} RESET (autovacuum_enabled)"
        return Finding("autovacuum", "problem", f"autovacuum is off for {tables}", way_out)
    return Finding("autovacuum", "ok", "autovacuum on")


def _transactions(found: Diagnostics) -> Finding:
    seconds, who, how = found.oldest or (0.0, "", "")
    if seconds >= LONG_TRANSACTION:
        age = format_duration(seconds)
        text = f"a transaction has been open for {age} ({clean(who)}): dead rows stay, and claims get slower"
        return Finding("transactions", "warning", text, f"end it: {clean(how)}")
    if not found.sees_all_sessions:
        text = "no long transaction of this role; those of others are hidden from it"
        return Finding("transactions", "ok", text, f"GRANT pg_read_all_stats TO {clean(found.role)}")
    return Finding("transactions", "ok", f"oldest transaction {format_duration(seconds)}")


def _dead(found: Diagnostics) -> Finding:
    many = {table: n for table, n in found.dead_rows.items() if n > MANY_DEAD}
    if not many:
        return Finding("dead rows", "ok", f"{sum(found.dead_rows.values()):,} dead rows where jobs come and go")
    text = ", ".join(f"{n:,} dead rows in treadle.{table}" for table, n in many.items())
    way_out = "end what keeps them (a long transaction, a replication slot), then: VACUUM treadle.ready, treadle.leases"
    return Finding("dead rows", "warning", text, way_out)


def _sessions(found: Diagnostics) -> Finding:
    most = int(found.settings["max_connections"])
    text, taken = f"{plural(found.sessions, 'connection')} of {most}", found.sessions / most
    if taken < MANY_SESSIONS:
        return Finding("connections", "ok", text)
    level: Level = "problem" if taken >= TOO_MANY_SESSIONS else "warning"
    way_out = "fewer processes, a pooler, or a higher max_connections"
    return Finding("connections", level, f"{text} are taken", way_out)


def _listen(found: Diagnostics) -> Finding:
    mode = "session" if found.hears else "transaction"
    between = f", through a pooler in {mode} mode" if found.is_pooled else ""
    if found.hears:
        return Finding("listen", "ok", f"notifications arrive{between}")
    text = f"notifications do not arrive{between}, so idle workers poll for jobs once a second"
    way_out = "give workers a direct connection, or a pool in session mode; producers need neither"
    return Finding("listen", "warning", text, way_out)


def _clock(found: Diagnostics) -> Finding:
    if abs(found.skew) < WRONG_CLOCK:
        return Finding("clock", "ok", "the server's clock agrees with this host's, to within seconds")
    side = "ahead of" if found.skew > 0 else "behind"
    text = f"the server's clock is {format_duration(abs(found.skew))} {side} this host's, and decides when jobs are due"
    return Finding("clock", "warning", text, "fix the time (NTP) on one of them; delay= is right in any case")
