"""`treadle jobs clone`: a new job like an old one."""

from __future__ import annotations

import click

from treadle.cli import reveal
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, pass_shared
from treadle.cli.enqueue import parsed
from treadle.errors import JobNotFound

HELP = """Store a new job like that one, and print its id.

KEY=VALUE and KEY:=JSON change its payload; all else of it stays.
"""


@command("clone", help=HELP)
@click.argument("id")
@click.argument("pairs", metavar="[KEY=VALUE | KEY:=JSON]...", nargs=-1)
@reveal.reveals
@pass_shared
def clone(shared: Shared, id: str, pairs: tuple[str, ...]) -> None:
    app = database(shared)
    old = app.get(id)
    if old is None:
        raise JobNotFound(id)
    new = app.clone(id, {**old.payload, **parsed(pairs)} if pairs else None)
    if shared.json:
        shared.data(reveal.job(shared, new))
        return
    shared.note(("✓ ", "green"), f"{new.type} {new.id} stored in queue {new.queue}, like {old.id}")
    shared.print(new.id)
