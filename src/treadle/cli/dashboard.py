"""`treadle dashboard`: the pages and the API, stand-alone."""

from __future__ import annotations

import webbrowser

import click

from treadle.app import Treadle
from treadle.cli import logs
from treadle.cli.app_loader import load_app, must_be_ready, url_of
from treadle.cli.base import Shared, command, pass_shared
from treadle.cli.errors import Problem

HELP = """The dashboard and the HTTP API, until stopped.

It listens on this machine only, and prints a link to sign in with. Given an APP (MODULE:NAME, as in app:td), it can
run jobs too: POST /api/jobs/tick.
"""


@command("dashboard", help=HELP)
@click.argument("target", metavar="[APP]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8420, show_default=True, help="0: any free one.")
@click.option("--prefix", default="", metavar="PATH", help="Where a proxy serves it, as in /jobs.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name it is known by; may be repeated.")
@click.option("--read-only", is_flag=True, help="Nothing can be changed.")
@click.option("--price", type=click.FloatRange(min=0), help="Of a second in a handler, for the insights.")
@click.option("-o", "--open", "browse", is_flag=True, help="Open it in a browser.")
@pass_shared
def dashboard(
    shared: Shared,
    target: str | None,
    host: str,
    port: int,
    prefix: str,
    hosts: tuple[str, ...],
    read_only: bool,
    price: float | None,
    browse: bool,
) -> None:
    try:
        from treadle.web import server
    except ModuleNotFoundError as error:
        raise Problem(
            f"the dashboard needs {error.name}",
            next="install the extra 'web', in a clone of treadle: pip install '.[web]'",
        ) from None
    app = load_app(shared, target) if target else Treadle(url_of(shared))
    if not server.is_loopback(host) and not server.has_credentials(app):
        raise Problem(f"--host {host} lets others in, and nothing identifies them", server.WAYS)
    if not target:
        must_be_ready(app.store)
    app.store.open()
    logs.set_up(0)
    made = server.Server(app, host=host, port=port, prefix=prefix, hosts=hosts, read_only=read_only, price=price)

    def ready() -> None:
        shared.print(made.login_link)
        shared.note((f"in {app.store.where}", "dim"))
        if browse:
            webbrowser.open(made.login_link)

    made.run(ready)
