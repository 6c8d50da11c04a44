"""`treadle db`: the database itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from treadle import units
from treadle.cli import output
from treadle.cli.app_loader import database, named_app
from treadle.cli.base import Shared, choices, command, duration, group
from treadle.cli.errors import CommandError
from treadle.job import Status
from treadle.stores import open_store
from treadle.worker.chores import PRUNED, prune

ROLES = """Print the SQL that creates roles and grants their rights, without connecting.

The owner owns the tables; workers see every tenant; producers see one tenant at a time, by row-level security. With
--apply, run it. It is safe to repeat; repeat it after an upgrade."""
STATUS: list[tuple[str, str, Callable[[Any], str]]] = [
    ("bytes", "size", units.format_bytes),
    ("log_bytes", "log", units.format_bytes),
    ("leases_given", "leases given", "{:,}".format),
    ("journal_mode", "journal", str),
    ("synchronous", "synchronous", str),
    ("sqlite_version", "SQLite", str),
    ("file_system", "file system", lambda kind: kind or "unknown"),
    ("server_version", "PostgreSQL", str),
    ("oldest_transaction_seconds", "oldest transaction", units.format_duration),
    ("dead_rows", "dead rows", "{:,}".format),
]
HOW_ENDED = choices([status for status in Status if status.is_final], default=PRUNED)


@command("status", help="Show where the database is, its schema and its size.")
def status(shared: Shared) -> None:
    found = database(shared).store.status()
    if shared.printed_json(found):
        return
    for name, value in _lines(found).items():
        shared.print((f"{name:<20}", "dim"), str(value))


def _lines(found: Mapping[str, Any]) -> dict[str, str]:
    """Only what this store reports."""
    newest = found["newest_schema"]
    schema = f"{found['schema']} ({'current' if found['schema'] == newest else f'newest: {newest}'})"
    lines = {"database": f"{found['store']} {found['where']}", "schema": schema}
    return lines | {label: shown(found[key]) for key, label, shown in STATUS if key in found}


@command("upgrade", help="Create the tables, or upgrade them. Safe to repeat.")
def upgrade(shared: Shared) -> None:
    store = named_app(shared).store
    before, schema = store.schema(), store.upgrade()
    if before != schema:
        shared.audit(store, "upgrade", f"schema {before or 0} → {schema}")
    how = "already current" if before == schema else f"upgraded from {before}" if before else "created"
    if not shared.printed_json({"where": store.where, "schema": schema, "before": before}):
        shared.print(("✓ ", "green"), f"{store.where}: schema {schema}, {how}")


@command("sql", help="Print the tables as SQL, without connecting.")
def sql(shared: Shared) -> None:
    script = named_app(shared).store.schema_sql()
    if not shared.printed_json({"sql": script}):
        click.echo(script, nl=False)


@command("roles", help=ROLES)
@click.option("--apply", is_flag=True, help="Run it, in one transaction.")
@click.option("--owner", default="treadle_owner", show_default=True, help="Owns the tables, and may upgrade them.")
@click.option("--worker", default="treadle_worker", show_default=True, help="Runs jobs, of every tenant.")
@click.option("--producer", default="treadle_producer", show_default=True, help="Enqueues, for one tenant at a time.")
def roles(shared: Shared, /, apply: bool, **names: str) -> None:
    url = named_app(shared).store.url
    if not url.startswith("postgres"):
        cause = "Anybody who can write a SQLite file can change everything in it."
        raise CommandError("roles exist only on PostgreSQL", cause, next="name one: --db postgresql://…")
    open_store(url)  # raises if psycopg is missing
    from treadle.stores.postgres.roles import Roles, script
    from treadle.stores.postgres.store import PostgresStore

    store, text = PostgresStore(url), script(Roles(**names))
    if apply:
        store.give_rights(Roles(**names))
        shared.audit(store, "grant rights", ", ".join(names.values()))
    if shared.printed_json({"sql": text, "applied": apply}):
        return
    if apply:
        shared.print(("✓ ", "green"), f"{store.where}: {', '.join(names.values())} have their rights")
    else:
        click.echo(f"BEGIN;\n\n{text}\nCOMMIT;")


@command("prune", help="Delete jobs that ended long ago, in small batches that do not block other writers.")
@click.option("--older-than", type=duration, default="7d", show_default=True, help="Ended longer ago than this.")
@click.option("-s", "--status", "statuses", **HOW_ENDED, help="How they ended; may be repeated.")
def prune_(shared: Shared, older_than: float, statuses: tuple[Status, ...]) -> None:
    app, deleted = database(shared), 0
    # Some of the ended jobs are too young, so the bar may not become full.
    ended = sum(row["count"] for row in app.counts(("status",)) if row["status"] in statuses)
    with output.progress(shared, "Pruning", ended) as advance:
        for count in prune(app.store, [Status(name) for name in statuses], older_than):
            deleted += count
            advance(deleted)
    if deleted:
        what = f"{', '.join(statuses)} for more than {units.format_duration(older_than)}"
        shared.audit(app.store, "prune", what, deleted)
    if not shared.printed_json({"deleted": deleted}):
        shared.print(f"{units.plural(deleted, 'job')} deleted", (f" in {app.store.where}", "dim"))


db = group("db", "Inspect, upgrade and prune the database.", [status, upgrade, sql, roles, prune_])
