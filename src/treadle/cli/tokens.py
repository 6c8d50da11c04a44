"""`treadle tokens`: who may use the HTTP API."""

from __future__ import annotations

import click
from rich.text import Text

from treadle import clock, units
from treadle import tokens as secrets
from treadle.cli import output
from treadle.cli.app_loader import database
from treadle.cli.base import Duration, Group, Shared, pass_shared
from treadle.cli.errors import CONFLICT, NOT_FOUND, CommandError
from treadle.settings import checked_name
from treadle.stores.rows import Token


@click.group("tokens", cls=Group, help="Create, list and revoke tokens for the HTTP API.")
def tokens() -> None:
    pass


@tokens.command("create", help="Create a token. It is printed once; only its hash is stored.")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(secrets.SCOPES),
    default=("read",),
    show_default=True,
    help="May be repeated; manage includes the others.",
)
@click.option("--tenant", default="", help="Only for this tenant's jobs.")
@click.option("--expires", type=Duration(), help="How long it is valid, as in 30d. Without it: until you revoke it.")
@pass_shared
def create(shared: Shared, name: str, scopes: tuple[str, ...], tenant: str, expires: float | None) -> None:
    if not name or name.startswith(secrets.SESSION):
        raise CommandError(
            f"a token cannot be called {name!r}",
            f"It needs a name, and names of logins begin with {secrets.SESSION!r}.",
        )
    store, secret = database(shared, create=True).store, secrets.new_secret()
    until = None if expires is None else store.now() + clock.seconds(expires)
    token = Token(
        hash=secrets.hash_of(secret),
        name=checked_name("name", name),
        scopes=tuple(sorted(set(scopes))),
        tenant=checked_name("tenant", tenant),
        expires_at=until,
    )
    if not store.add_token(token):
        raise CommandError(f"a token {name!r} already exists", next=f"treadle tokens revoke {name}", code=CONFLICT)
    shared.audit(store, "create token", name)
    if shared.json:
        shared.data({"name": name, "token": secret, "scopes": token.scopes, "tenant": tenant, "expires_at": _at(until)})
        return
    shared.print(secret)
    shared.note((f"copy it now: it is not shown again; it gives access to {store.where}", "dim"))


@tokens.command("ls", help="List the tokens, without their secrets.")
@pass_shared
def ls(shared: Shared) -> None:
    store = database(shared).store
    rows, now = store.tokens(), store.now()
    if shared.json:
        shared.data({"items": [_as_json(token, now) for token in rows]})
        return
    table = output.table("NAME", "SCOPES", "TENANT", "CREATED", "EXPIRES")
    for token in rows:
        expired = token.expires_at is not None and token.expires_at <= now
        table.add_row(
            Text(output.clean(token.name)),
            Text(", ".join(token.scopes)),
            Text(output.clean(token.tenant) or "all"),
            Text(units.format_relative(clock.to_datetime(token.created_at))),
            Text(_expiry(token), style="red" if expired else ""),
        )
    output.show(shared, table)


@tokens.command("revoke", help="Revoke a token. Within a second, it is refused.")
@click.argument("name")
@pass_shared
def revoke(shared: Shared, name: str) -> None:
    store = database(shared).store
    if not store.drop_token(name):
        raise CommandError(f"there is no token {name!r}", next="treadle tokens ls", code=NOT_FOUND)
    shared.audit(store, "revoke token", name)
    if shared.json:
        shared.data({"name": name, "revoked": True})
    else:
        shared.note(f"revoked {output.clean(name)}")


def _expiry(token: Token) -> str:
    return "never" if token.expires_at is None else units.format_relative(clock.to_datetime(token.expires_at))


def _at(moment: int | None) -> object:
    return None if moment is None else clock.to_datetime(moment)


def _as_json(token: Token, now: int) -> dict[str, object]:
    return {
        "name": token.name,
        "scopes": token.scopes,
        "tenant": token.tenant,
        "created_at": _at(token.created_at),
        "expires_at": _at(token.expires_at),
        "expired": token.expires_at is not None and token.expires_at <= now,
    }
