"""`treadle limits`: ls, set and unset."""

from __future__ import annotations

from collections.abc import Sequence

import click

from treadle import views
from treadle.cli import output
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, group, reveals, user
from treadle.cli.output import clean
from treadle.limits import LimitState, parse_rate
from treadle.units import format_relative, format_utc
from treadle.views import LimitsOut

SET = """Change a limit for one key, or for all that have no change of their own. It wins over the code until unset.

NAME is a limit that the code declares, or type:NAME for all jobs of a type. What runs goes on.

\b
    treadle limits set openai --key acme --concurrency 50
    treadle limits set openai --rate 500/60s --burst 50
    treadle limits set type:send --concurrency 5"""
KEY = click.option("--key", default="", help="Only for this key, such as a tenant.")


@command("ls", help="List limits: how much of each is used, and who changed it.")
@reveals
def ls(shared: Shared) -> None:
    app = database(shared)
    limits = [views.limit(state, shared.redactor(app)) for state in app.limits.list()]
    if not shared.printed_json(LimitsOut(items=limits)):
        output.show(shared, _columns(limits), right={"RUNNING"}, empty="no limits")


def _columns(limits: Sequence[LimitState]) -> output.Columns:
    columns: output.Columns = {
        "LIMIT": [state.name for state in limits],
        "PER": [state.per or "" for state in limits],
        "KEY": [state.key for state in limits],
        "RUNNING": [f"{state.running:,}" for state in limits],
        "ALLOWED": [state.bounds for state in limits],
        "OVER": [output.number(state.over, "yellow") if state.over else "" for state in limits],
        "TYPES": [", ".join(state.types) or "-" for state in limits],
        "CHANGED": [_changed(state) for state in limits],
        "HELD BACK": [f"until {format_utc(state.held_until)}" if state.held_until else "" for state in limits],
    }
    return {head: cells for head, cells in columns.items() if any(map(str, cells))}


def _changed(state: LimitState) -> str:
    if state.changed_by is None or state.changed_at is None:
        return ""
    return f"{format_relative(state.changed_at)} by {state.changed_by or 'somebody'}"


@command("set", help=SET)
@click.argument("name")
@KEY
@click.option("--concurrency", type=int, metavar="N", help="How many jobs run at once.")
@click.option("--rate", metavar="COUNT/TIME", help="How many start per time: 500/60s, 10/1h.")
@click.option("--burst", type=int, metavar="N", help="How many start at once after a quiet time.")
@reveals
def set_(shared: Shared, name: str, key: str, concurrency: int | None, rate: str | None, burst: int | None) -> None:
    if burst is not None and rate is None:
        raise click.UsageError("--burst is part of a rate: add --rate COUNT/TIME")
    app = database(shared)
    parsed = None if rate is None else parse_rate(rate, burst or 0)
    state = app.limits.set(name, key=key, concurrency=concurrency, rate=parsed, by=user())
    hide = shared.redactor(app)
    shared.audit(app.store, "set_limit", app.redactor.text(f"{state}: {state.bounds}"))
    if not shared.printed_json(views.limit(state, hide)):
        over = f"; {state.over:,} more run now" if state.over else ""
        shared.print(clean(hide.text(f"limit {state} is {state.bounds}")), over)


@command("unset", help="Go by the code again, and let a key go that a handler holds back.")
@click.argument("name")
@KEY
def unset(shared: Shared, name: str, key: str) -> None:
    app = database(shared)
    state = app.limits.get(name, key=key) or LimitState(name=name, key=key)
    gone, text = app.limits.unset(name, key=key), app.redactor.text(str(state))
    if gone:
        shared.audit(app.store, "unset_limit", text)
    if shared.printed_json({"unset": gone}):
        return
    if gone:
        shared.print(f"limit {clean(text)} is as the code says")
    else:
        shared.note(f"limit {clean(text)} was not changed, and is not held back")


limits = group("limits", "List limits and how much of each is used; set and unset them.", [ls, set_, unset])
