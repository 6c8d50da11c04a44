"""`windlass dashboard`: the pages and the API, stand-alone."""

from __future__ import annotations

import click

from windlass.cli import logs
from windlass.cli.base import Shared, command, pass_shared
from windlass.cli.errors import Problem
from windlass.cli.target import database, load_app

HELP = """The dashboard and the HTTP API, until stopped.

It listens on this machine only and prints a link to sign in with. With an APP (MODULE:NAME) it can tick too.
"""


@command("dashboard", help=HELP)
@click.argument("target", metavar="[APP]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8420, show_default=True, help="0: any free one.")
@click.option("--prefix", default="", metavar="PATH", help="Where a proxy serves it: /jobs.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name it is known by; may be repeated.")
@click.option("--read-only", is_flag=True, help="Nothing can be changed.")
@pass_shared
def dashboard(
    shared: Shared,
    target: str | None,
    host: str,
    port: int,
    prefix: str,
    hosts: tuple[str, ...],
    read_only: bool,
) -> None:
    app = load_app(shared, target) if target else database(shared, create=True)
    app.store.open()
    logs.set_up(0)
    try:
        from windlass.web.server import serve
    except ModuleNotFoundError as error:
        raise Problem(f"the dashboard needs {error.name}", next="pip install 'windlass[web]'") from None
    serve(app, host=host, port=port, prefix=prefix, hosts=hosts, read_only=read_only, say=shared.note)
