"""`treadle jobs why`: the answer to the question that people ask first."""

from __future__ import annotations

import click

from treadle.cli import reveal
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, pass_shared
from treadle.cli.output import clean, status


@command("why", help="Why a job is not running: every reason that holds, the deciding one first.")
@click.argument("id")
@reveal.reveals
@pass_shared
def why(shared: Shared, id: str) -> None:
    answer = reveal.why(shared, database(shared).why(id))
    if shared.json:
        shared.data(answer)
        return
    shared.out.print(status(answer.status), highlight=False)
    for n, reason in enumerate(answer.reasons):
        shared.print(("• ", "dim"), (clean(reason.text), "bold" if n == 0 else ""))
        shared.print("  → ", (clean(reason.way_out), "dim"))
