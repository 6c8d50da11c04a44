"""What all commands share: --db, --json and their like, before the command's name or after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

T = TypeVar("T")


@dataclass
class Shared:
    """The shared options of this call, and where its output goes: data to stdout, messages to stderr."""

    db: str | None = None
    json: bool = False
    quiet: bool = False
    no_color: bool = False
    reveal: bool = False

    @cached_property
    def out(self) -> Console:
        return self._console()

    @cached_property
    def err(self) -> Console:
        return self._console(stderr=True)

    def _console(self, *, stderr: bool = False, width: int | None = None) -> Console:
        # Data is never markup: a payload may well say [red]. NO_COLOR is honoured by rich itself.
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

    def warn(self, text: str, way_out: str | None = None) -> None:
        self.note(("⚠ ", "yellow"), text)
        if way_out:
            self.note(("  → ", "dim"), way_out)

    def data(self, value: Any) -> None:
        """One JSON document; indented where a person reads it."""
        text = msgspec.json.encode(value)
        click.echo(msgspec.json.format(text, indent=2) if self.out.is_terminal else text)


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """An option given here wins over one given before the command; one left out changes nothing."""
    shared = ctx.ensure_object(Shared)
    if value is not None:
        setattr(shared, str(param.name), value)


def _shared_options(*, variables: bool) -> list[click.Parameter]:
    def option(*names: str, help: str, variable: bool = variables, **settings: Any) -> click.Option:
        return click.Option(
            names,
            help=help,
            expose_value=False,
            callback=_remember,
            default=None,
            allow_from_autoenv=variable,
            **settings,
        )

    return [
        option(
            "--db",
            metavar="URL",
            help="The database: sqlite:///jobs.db, postgresql://….  [$TREADLE_URL]",
            variable=False,
        ),
        option("--json", is_flag=True, help="Print JSON."),
        option("-q", "--quiet", is_flag=True, help="No notes on stderr, only errors."),
        option("--no-color", is_flag=True, help="No colours."),
    ]


class Command(click.Command):
    """A command that takes the shared options too."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        taken = {name for param in self.params for name in param.opts}
        for option in _shared_options(variables=False):
            option.opts = [name for name in option.opts if name not in taken]
            self.params.append(option)


class Group(click.Group):
    """The same for a group of commands. Only the outermost reads $TREADLE_JSON and its like."""

    command_class = Command

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.extend(_shared_options(variables=type(self) is not Group))


def command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """`@click.command` with the shared options."""
    return click.command(name, cls=Command, **settings)


pass_shared = click.make_pass_decorator(Shared, ensure=True)
