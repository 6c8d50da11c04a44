"""What a handler calls on its Context and on apps, as its code shows it."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Generator, Mapping
from itertools import pairwise
from types import CodeType
from typing import Any

from treadle.app import Treadle

_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME")
"""How the instructions begin that read a variable. They have other endings in each version of Python."""


def calls(handler: Callable[..., Any], *, takes_context: bool) -> Generator[tuple[str, str]]:
    """("ctx", "step") for `ctx.step`, and ("td", "signal") for `td.signal`, in the order of the code. What it passes to
    other functions is not followed."""
    function: Any = inspect.unwrap(handler)
    if (code := getattr(function, "__code__", None)) is None:
        return
    closed = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    variables = {**function.__globals__, **{name: _content(cell) for name, cell in closed.items()}}
    of = {name: "td" for name, value in variables.items() if isinstance(value, Treadle)}
    if takes_context:
        of[code.co_varnames[0]] = "ctx"
    yield from _attributes(code, of)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is assigned later
        return None


def _attributes(code: CodeType, of: Mapping[str, str]) -> Generator[tuple[str, str]]:
    """The attributes of these variables that the code reads, and the code of functions in it."""
    instructions = [one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG"]
    for before, one in pairwise(instructions):
        if before.opname.startswith(_LOADS) and one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            name = before.argval[-1] if isinstance(before.argval, tuple) else before.argval  # some read two at once
            if name in of:
                yield of[name], one.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _attributes(inner, of)
