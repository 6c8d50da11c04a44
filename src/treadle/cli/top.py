"""`treadle top`: the dashboard at a glance, in a terminal."""

from __future__ import annotations

import contextlib
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import click
from rich.live import Live

from treadle.cli import top_view
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, pass_shared
from treadle.cli.params import Duration

if TYPE_CHECKING:
    from treadle.app import Treadle

HELP = """What is going on, at a glance: what waits, who works, what fails. q ends it, p pauses it.

Where stdout is no terminal, it shows one look and ends.
"""


@command("top", help=HELP)
@click.option("--interval", type=Duration(), default="1s", show_default=True, help="Between two looks.")
@pass_shared
def top(shared: Shared, interval: float) -> None:
    app = database(shared)
    if shared.json:
        shared.data(top_view.as_json(top_view.look(app)))
    elif not shared.out.is_terminal:
        shared.print_wide(top_view.draw(top_view.look(app), rows=200), 160)
    else:
        with keys() as pressed:
            _watch(app, shared, max(0.1, interval), pressed)


def _watch(app: Treadle, shared: Shared, interval: float, pressed: Callable[[float], str]) -> None:
    """Until q or Ctrl-C."""
    paused = False
    with Live(console=shared.out, screen=True, auto_refresh=False) as screen:
        while True:
            note = "paused: p goes on" if paused else ""
            screen.update(top_view.draw(top_view.look(app), shared.out.height, note), refresh=True)
            key = pressed(interval)
            while paused and key not in ("p", "q"):
                key = pressed(interval)
            if key == "q":
                return
            paused = paused != (key == "p")


@contextlib.contextmanager
def keys() -> Generator[Callable[[float], str]]:
    """A function that waits so many seconds for a key, and gives it, or nothing."""
    if not sys.stdin.isatty():  # nobody can press anything
        yield _sleep
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key(seconds: float) -> str:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return sys.stdin.read(1) if ready else ""


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""
