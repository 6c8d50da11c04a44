"""`treadle dashboard` and `treadle tokens`: the pages and the HTTP API in a server of their own, and who may use it."""

from __future__ import annotations

import ipaddress
import webbrowser
from typing import Any

import click
from rich.text import Text

from treadle import api_tokens as secrets
from treadle import clock, units
from treadle.cli import output
from treadle.cli.app_loader import database, load_app, must_be_ready, named_app, published_redactor
from treadle.cli.base import Shared, choices, command, duration, group, takes_app
from treadle.cli.errors import CONFLICT, NOT_FOUND, CommandError, refuse_json
from treadle.errors import MissingExtra
from treadle.settings import checked_name
from treadle.stores.rows import Token
from treadle.views import moment

HELP = """Serve the dashboard and the HTTP API until stopped.

It listens on this machine only, and prints a link to sign in with. With an APP (MODULE:NAME, as in app:td), it can
also run jobs: POST /api/jobs/tick."""
HOSTS = "A host name that it answers to; may be repeated."
PROXY = "A proxy, or a network of proxies, whose X-Forwarded-For and -Proto it trusts; may be repeated."
LOGIN_HEADER = (
    "The header in which the proxies name the user that they have signed in: X-Forwarded-User. Needs --proxy."
)
PORT = click.IntRange(0, 65_535)
SCOPE_OPTION = choices(secrets.SCOPES, default=["read"])


def network(value: str) -> str:
    """`127.0.0.1` or `10.0.0.0/8`."""
    try:
        return str(ipaddress.ip_network(value))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not an address; write 127.0.0.1, or a network: 10.0.0.0/8") from None


@command("dashboard", help=HELP, prints_data=False)
@takes_app
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=PORT, default=8420, show_default=True, help="The port; 0: any free one.")
@click.option("--prefix", default="", metavar="PATH", help="The path under which a proxy serves it, as in /jobs.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help=HOSTS)
@click.option("--proxy", "proxies", type=network, multiple=True, metavar="ADDRESS", help=PROXY)
@click.option("--login-header", metavar="NAME", help=LOGIN_HEADER)
@click.option("--read-only", is_flag=True, help="Refuse all changes.")
@click.option("--price", type=click.FloatRange(min=0), help="What a second in a handler costs, for the insights.")
@click.option("-o", "--open", "browse", is_flag=True, help="Open it in a browser.")
def dashboard(shared: Shared, /, host: str, browse: bool, **settings: Any) -> None:
    refuse_json(shared, "dashboard", "It serves pages and an HTTP API.", "the API answers in JSON: GET /api/jobs")
    try:
        from treadle.web import server
    except ModuleNotFoundError as error:
        raise MissingExtra("the dashboard", str(error.name), "web") from None
    app = load_app(shared, shared.target) if shared.target else named_app(shared)
    if not (server.is_loopback(host) or settings["login_header"] or server.has_credentials(app)):
        raise CommandError(f"--host {host} lets others in, and nothing identifies them", server.WAYS)
    if not app.registry.types:
        must_be_ready(shared, app.store)
        app.redactor = published_redactor(app)
    app.store.open()
    output.set_up_logs(0)
    made = server.DashboardServer(app, host=host, **settings)
    link = made.new_link()

    def ready() -> None:
        shared.print(link)
        shared.note((f"in {app.store.where}", "dim"))
        if browse:
            webbrowser.open(link)

    made.run(ready)


@command("create", help="Create a token. It is printed once; only its hash is stored.")
@click.argument("name")
@click.option("--scope", "scopes", **SCOPE_OPTION, help="May be repeated; manage includes the others.")
@click.option("--tenant", default="", help="Only for this tenant's jobs.")
@click.option("--expires", type=duration, help="How long it is valid, as in 30d. Without it: until you revoke it.")
def create(shared: Shared, name: str, scopes: tuple[str, ...], tenant: str, expires: float | None) -> None:
    if not name or name.startswith(secrets.SESSION):
        cause = f"It needs a name, and names of logins begin with {secrets.SESSION!r}."
        raise CommandError(f"a token cannot be called {name!r}", cause)
    store, secret = database(shared, create=True).store, secrets.new_secret()
    until = None if expires is None else store.now() + clock.seconds(expires)
    name, tenant, unique = checked_name("name", name), checked_name("tenant", tenant), tuple(sorted(set(scopes)))
    token = Token(hash=secrets.hash_of(secret), name=name, scopes=unique, tenant=tenant, expires_at=until)
    if not store.add_token(token):
        raise CommandError(f"a token {name!r} already exists", next=f"treadle tokens revoke {name}", code=CONFLICT)
    shared.audit(store, "create token", name)
    access = {"scopes": token.scopes, "tenant": tenant, "expires_at": moment(until)}
    if not shared.printed_json({"name": name, "token": secret, **access}):
        shared.print(secret)
        shared.note((f"copy it now: it is not shown again; it gives access to {store.where}", "dim"))


@command("ls", help="List the tokens, without their secrets.")
def ls(shared: Shared) -> None:
    store = database(shared).store
    rows, now = store.tokens(), store.now()
    if shared.printed_json({"items": [_as_json(token, now) for token in rows]}):
        return
    columns: output.Columns = {
        "NAME": [token.name for token in rows],
        "SCOPES": [", ".join(token.scopes) for token in rows],
        "TENANT": [output.clean(token.tenant) or "all" for token in rows],
        "CREATED": [units.format_relative(clock.moment(token.created_at)) for token in rows],
        "EXPIRES": [_expiry(token, now) for token in rows],
    }
    output.show(shared, columns)


@command("revoke", help="Revoke a token. Within a second, it is refused.")
@click.argument("name")
def revoke(shared: Shared, name: str) -> None:
    store = database(shared).store
    if not store.drop_token(name):
        raise CommandError(f"there is no token {name!r}", next="treadle tokens ls", code=NOT_FOUND)
    shared.audit(store, "revoke token", name)
    if not shared.printed_json({"name": name, "revoked": True}):
        shared.note(f"revoked {output.clean(name)}")


def _as_json(token: Token, now: int) -> dict[str, object]:
    times = {"created_at": moment(token.created_at), "expires_at": moment(token.expires_at)}
    access = {"name": token.name, "scopes": token.scopes, "tenant": token.tenant}
    return {**access, **times, "expired": secrets.is_expired(token.expires_at, now)}


def _expiry(token: Token, now: int) -> Text:
    until, expired = moment(token.expires_at), secrets.is_expired(token.expires_at, now)
    return Text(units.format_relative(until) if until else "never", style="red" if expired else "")


tokens = group("tokens", "Create, list and revoke tokens for the HTTP API.", [create, ls, revoke])
