"""What all commands share: --db, --app, --json and so on, before a command's name or after it; and types of options."""

from __future__ import annotations

import getpass
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console, RenderableType
from rich.text import Text

from treadle.errors import TreadleError
from treadle.program import COMMAND, program
from treadle.redact import OFF, Redactor, without_password
from treadle.stores.base import Store
from treadle.stores.rows import AuditRow
from treadle.units import parse_duration

if TYPE_CHECKING:
    from treadle.app import Treadle


HINTED = re.compile(rf"(?<!`)(?:\bpython manage\.py )?{COMMAND}")
"""Where options go in a command that a text recommends. `treadle worker` in backticks is only its name."""


@dataclass
class Shared:
    """The shared options of this call, and where its output goes: data to stdout, messages to stderr."""

    db: str | None = None
    json: bool = False
    json_was_typed: bool = False  # not set by $TREADLE_JSON, which is meant for all commands that print data
    quiet: bool = False
    no_color: bool = False
    reveal: bool = False
    app: str | None = None
    target: str | None = None  # the app, as an argument
    program: str = ""  # how the user calls it, if not as the whole process says

    @cached_property
    def out(self) -> Console:
        return self._console()

    @cached_property
    def err(self) -> Console:
        return self._console(stderr=True)

    def _console(self, *, stderr: bool = False, width: int | None = None) -> Console:
        # Data is never markup: a payload may contain [red]. rich itself obeys NO_COLOR.
        plain = True if self.no_color else None
        return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False, no_color=plain)

    def print_wide(self, thing: RenderableType, width: int) -> None:
        """Print what needs `width` columns, even if the terminal has fewer; in a pipe no line ends in spaces."""
        console = self._console(width=max(1, width))
        if self.out.is_terminal:
            console.print(thing)
            return
        with console.capture() as captured:
            console.print(thing)
        click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))

    def print(self, *parts: str | tuple[str, str]) -> None:
        """One line of data; a part with a style is a pair."""
        self.out.print(Text.assemble(*parts), soft_wrap=True)

    def note(self, *parts: str | tuple[str, str]) -> None:
        """One line for people."""
        if not self.quiet:
            self.err.print(Text.assemble(*parts), soft_wrap=True)

    def warn(self, text: str, way_out: str = "") -> None:
        self.note(("⚠ ", "yellow"), text)
        if way_out:
            self.note(("  → ", "dim"), self.hint(way_out))

    def hint(self, text: str) -> str:
        """A text whose `treadle …` commands can be pasted: with the program, --db and --app of this call, without a
        password. A program that is not treadle itself knows its app."""
        given, name = self.app or self.target or "", self.program or program().name
        app = shlex.quote(given if given != program().app else "")
        of_db = f"--db {shlex.quote(without_password(self.db))} " if self.db else ""
        of_app = f"--app {app} " if app != "''" else ""
        named = text.rfind("--db")

        def with_options(found: re.Match[str]) -> str:
            options = "" if found.start() < named else of_db or ("" if found["takes_app"] else of_app)
            return f"{name} {options}"

        text = HINTED.sub(with_options, text)
        argument = f" {app}" if of_app else " app:td" if name == "treadle" else ""
        return re.sub(r"\b(worker|tick) app:td", lambda found: f"{found[1]}{argument}", text)

    def printed_json(self, value: Any) -> bool:
        """With --json, print the value, indented on a terminal. Returns whether it did."""
        if self.json:
            text = msgspec.json.encode(value)
            click.echo(msgspec.json.format(text, indent=2) if self.out.is_terminal else text)
        return self.json

    def audit(self, store: Store, action: str, what: str, count: int = 1, *, may_fail: bool = False) -> None:
        """Record a change that was made, and the user of the operating system who made it."""
        try:
            store.audit(AuditRow(who=user(), action=action, what=what, count=count))
        except TreadleError as error:  # the change is made, and an exit code that says otherwise would have it repeated
            if not may_fail:
                self.warn(f"the audit does not show this change: {error}")

    def redactor(self, app: Treadle) -> Redactor:
        """What hides secrets in the output: nothing, if --reveal is given."""
        return OFF if self.reveal else app.redactor


def user() -> str:
    """Who gives the command: the user of the operating system."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError, ImportError):  # a container may have no name for its user; Windows has no list of them
        return "cli:unknown"


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """An option given here wins over one given before the command; one left out changes nothing."""
    shared, name = ctx.ensure_object(Shared), str(param.name)
    if value is not None:
        setattr(shared, name, value)
        if name == "json":
            shared.json_was_typed = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


REMEMBERED: dict[str, Any] = {"expose_value": False, "callback": _remember, "default": None}


def shared_options(*, variables: bool = False, hide_json: bool = False) -> list[click.Parameter]:
    """The options that every command and group takes. Only the outermost reads variables such as $TREADLE_JSON."""

    def option(*names: str, variable: bool = variables, **settings: Any) -> click.Option:
        return click.Option(names, allow_from_autoenv=variable, **settings, **REMEMBERED)

    db = "The database: sqlite:///jobs.db, postgresql://….  [$TREADLE_URL]"
    app = "Import this app, and use its database.  [$TREADLE_APP]"
    return [
        option("--db", metavar="URL", help=db, variable=False),
        option("-a", "--app", metavar="MODULE:NAME", help=app, variable=False),
        option("--json", is_flag=True, help="Print JSON.", hidden=hide_json),
        option("-q", "--quiet", is_flag=True, help="Print no notes on stderr, only errors."),
        option("--no-color", is_flag=True, help="Print without colors."),
    ]


def command(name: str, *, prints_data: bool = True, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """A command whose function gets the shared options first. If it prints no data, its help does not show --json."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        pass_shared = click.make_pass_decorator(Shared, ensure=True)
        made: click.Command = click.command(name, cls=click.Command, **settings)(pass_shared(function))
        made.params += shared_options(hide_json=not prints_data)
        return made

    return decorate


def group(name: str, help: str, commands: Sequence[click.Command], default: click.Command | None = None) -> click.Group:
    """Commands under one name, which alone is the `default` one."""

    @click.pass_context
    def run_default(ctx: click.Context) -> None:
        if default and ctx.invoked_subcommand is None:
            ctx.invoke(default)

    params, alone = shared_options(), default is not None
    return click.Group(
        name, help=help, commands=commands, params=params, callback=run_default, invoke_without_command=alone
    )


def choices(values: Iterable[str], default: Iterable[str] = ()) -> dict[str, Any]:
    """The settings of an option that may be repeated, each time with one of some values."""
    kind, chosen = click.Choice([*map(str, values)]), [*map(str, default)]
    return {"multiple": True, "type": kind, "default": chosen, "show_default": True}


# For a command that prints jobs.
reveals = click.option("--reveal", is_flag=True, help="Print passwords, tokens and other secrets, too.", **REMEMBERED)


def takes_app(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command that runs an app's code takes its name as APP, too."""
    return click.argument("target", metavar="[APP]", required=False, **REMEMBERED)(function)


AT = "Run it at this ISO time, local unless it has a zone."


def duration(value: str) -> float:
    """`90`, `5m`, `1h30m`, `7d`: seconds."""
    seconds = parse_duration(value)
    if seconds is None or seconds > 10**10:
        raise click.BadParameter(f"{value!r} is not a duration; write 90 (seconds), 5m, 1h30m or 7d")
    return seconds


def moment(value: str) -> datetime:
    """An ISO time. Without a zone it is local time."""
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError):
        text = f"{value!r} is not a time; write 2026-11-01T08:30, with +01:00 or Z for a zone"
        raise click.BadParameter(text) from None
