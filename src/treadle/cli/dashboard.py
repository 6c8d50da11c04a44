"""`treadle dashboard`: the pages and the HTTP API, in a server of their own."""

from __future__ import annotations

import webbrowser

import click

from treadle.app import Treadle
from treadle.cli import output
from treadle.cli.app_loader import load_app, must_be_ready, url_of
from treadle.cli.base import Shared, command, pass_shared
from treadle.cli.errors import CommandError, refuse_json

HELP = """Serve the dashboard and the HTTP API until stopped.

It listens on this machine only, and prints a link to sign in with. With an APP (MODULE:NAME, as in app:td), it can
also run jobs: POST /api/jobs/tick.
"""


@command("dashboard", help=HELP, prints_data=False)
@click.argument("target", metavar="[APP]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8420, show_default=True, help="The port; 0: any free one."
)
@click.option("--prefix", default="", metavar="PATH", help="The path under which a proxy serves it, as in /jobs.")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="A host name that it answers to; may be repeated."
)
@click.option("--read-only", is_flag=True, help="Refuse all changes.")
@click.option("--price", type=click.FloatRange(min=0), help="What a second in a handler costs, for the insights.")
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
    refuse_json(shared, "dashboard", "It serves pages and an HTTP API.", "the API answers in JSON: GET /api/jobs")
    try:
        from treadle.web import server
    except ModuleNotFoundError as error:
        raise CommandError(
            f"the dashboard needs {error.name}",
            next="install the extra 'web', in a clone of treadle: pip install '.[web]'",
        ) from None
    app = load_app(shared, target) if target else Treadle(url_of(shared))
    if not server.is_loopback(host) and not server.has_credentials(app):
        raise CommandError(f"--host {host} lets others in, and nothing identifies them", server.WAYS)
    if not target:
        must_be_ready(app.store)
    app.store.open()
    output.set_up_logs(0)
    made = server.Server(app, host=host, port=port, prefix=prefix, hosts=hosts, read_only=read_only, price=price)

    def ready() -> None:
        shared.print(made.login_link)
        shared.note((f"in {app.store.where}", "dim"))
        if browse:
            webbrowser.open(made.login_link)

    made.run(ready)
