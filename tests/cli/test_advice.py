"""Every `treadle …` command that an error, a reason, a finding or a page recommends can be run: its options exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

import treadle
from treadle.cli import COMMANDS, cli

SOURCE = Path(treadle.__file__).parent
COMMAND = re.compile(rf"\btreadle (?:{'|'.join(COMMANDS)})\b(?:'[^'\n]*'|(?! or |  |[:.] )[^,;()|<`→\n])*")
"""Up to what cannot be a part of it: punctuation outside of quotes, two spaces, or another command."""


def texts(path: Path) -> Iterator[str]:
    """The strings of a module but its docstrings, with x for each value; or all of a template."""
    if path.suffix == ".html":
        yield path.read_text()
        return
    tree = ast.parse(path.read_text())
    apart = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    apart |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in apart:
            yield node.value


def recommended() -> set[str]:
    paths = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.html")]
    found = (command for path in paths for text in texts(path) for command in COMMAND.findall(text))
    return {command.rstrip(":.") for command in found}


def parse(words: list[str]) -> None:
    """Raise if click would refuse the words; a name that was left out, as in `treadle tokens create`, is allowed."""
    command: click.Command = cli
    ctx = click.Context(cli, info_name="treadle")
    while isinstance(command, click.Group) and words:
        name, command, words = command.resolve_command(ctx, words)
        assert command is not None, name
        ctx = click.Context(command, parent=ctx, info_name=name)
    with suppress(click.MissingParameter, click.exceptions.NoArgsIsHelpError, click.exceptions.Exit):  # Exit: --help
        command.make_context(ctx.info_name, words, parent=ctx.parent)


@pytest.mark.parametrize("command", sorted(recommended()))
def test_a_recommended_command_can_be_run(command: str) -> None:
    parse(shlex.split(command)[1:])


def test_advice_is_found() -> None:
    assert {"treadle worker app:td --queues x", "treadle jobs retry x", "treadle db upgrade"} <= recommended()
    with pytest.raises(click.NoSuchOption):
        parse(["worker", "app:td", "--queue", "x"])
