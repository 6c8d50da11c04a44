"""`treadle jobs signal`, and the steps and waits that `treadle jobs show` prints."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from treadle import units, views
from treadle.cli import output
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, reveals, user
from treadle.cli.errors import CommandError
from treadle.cli.output import clean
from treadle.codec import as_json
from treadle.signals import send
from treadle.views import StepOut
from treadle.waits import Wait

SIGNAL = """Send a signal: jobs that wait for it go on, now and later.

The first signal of a name counts, and is printed. JSON is its value, null by default."""


@command("signal", help=SIGNAL)
@click.argument("name")
@click.argument("value", metavar="[JSON]", default="null")
@click.option("--tenant", default="", help="Whose signal it is.")
@click.option("--by", metavar="WHO", help="Who sends it; by default the user of the operating system.")
@reveals
def signal(shared: Shared, name: str, value: str, tenant: str, by: str | None) -> None:
    try:
        given = msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise CommandError(
            f"{value!r} is not JSON", f"{error}. Text needs quotes.", next=f"try '\"{value}\"'"
        ) from None
    app = database(shared)
    found, new = send(app, name, given, tenant, by or user())
    if new:
        shared.audit(app.store, "signal", f"{name} for {tenant}" if tenant else name)
    shown = views.signal(found, shared.redactor(app))
    if shared.printed_json(shown):
        return
    if not new:
        shared.note(
            f"{clean(name)} was sent before, by {clean(found.by)} {units.format_relative(found.at)}: that counts"
        )
    shared.print(clean(name), "  ", clean(as_json(shown.value)), "  ", (f"by {clean(found.by)}", "dim"))


def print_waits(shared: Shared, waits: Sequence[Wait]) -> None:
    """What the job waits for, those first that are not over."""
    if waits:
        output.section(shared, "Waits")
        now = [wait.status or ("over" if wait.met else "not sent") for wait in waits]
        output.show(
            shared,
            {
                "": ["✓" if wait.met else "◌" for wait in waits],
                "KIND": [wait.kind for wait in waits],
                "FOR": [wait.what for wait in waits],
                "NOW": [str(one) for one in now],
                "STEP": [wait.step for wait in waits],
                "SINCE": [units.format_local(wait.since) for wait in waits],
                "UNTIL": ["" if wait.until is None else units.format_local(wait.until) for wait in waits],
            },
        )


def print_steps(shared: Shared, steps: Sequence[StepOut]) -> None:
    if steps:
        output.section(shared, "Steps")
        took = [(step.ended_at - step.started_at).total_seconds() for step in steps]
        output.show(
            shared,
            {
                "STEP": [step.name for step in steps],
                "KIND": [step.kind for step in steps],
                "ATTEMPT": [str(step.attempt or "-") for step in steps],
                "TOOK": [units.format_duration(seconds) for seconds in took],
                "VALUE": [as_json(step.value)[:200] for step in steps],
            },
            right=("ATTEMPT", "TOOK"),
            clip="VALUE",
        )
