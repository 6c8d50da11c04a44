"""JSON and tracebacks as HTML. Python formats them, because JavaScript would round large numbers."""

from __future__ import annotations

import re
import sysconfig
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup, escape

from treadle import codec
from treadle.redact import HIDDEN

_TOKEN = re.compile(r'("(?:[^"\\]++|\\.)*+")(\s*+:)?|(-?\d[\d.eE+-]*)|(true|false|null)')
_FRAME = re.compile(r'\s+File "(.+)", line \d+')
_LIBRARY = re.compile(
    r"[/\\](site-packages|dist-packages|lib[/\\]python3[^/\\]*|treadle[/\\](worker|stores|app|context|testing))[/\\.]"
    r"|^<frozen "
)


def pretty(value: Any) -> str:
    """A JSON value over several lines, every number exact."""
    return msgspec.json.format(codec.encode(value), indent=2).decode()


def brief(value: Any, most: int = 160) -> str:
    """A JSON value on one line, for a cell of a table."""
    text = codec.encode(value).decode()
    return text if len(text) <= most else text[: most - 1] + "…"


def json(value: Any) -> Markup:
    """`pretty` with colors."""
    text, at, parts = pretty(value), 0, []
    for found in _TOKEN.finditer(text):
        parts += [escape(text[at : found.start()]), _colored(found)]
        at = found.end()
    return Markup("").join([*parts, escape(text[at:])])


def _colored(found: re.Match[str]) -> Markup:
    string, colon, digits, _ = found.groups()
    if string is not None:
        kind = "key" if colon else "red" if string == f'"{HIDDEN}"' else "str"
        return Markup('<span class="j-{}">{}</span>{}').format(kind, string, colon or "")
    return Markup('<span class="j-{}">{}</span>').format("num" if digits is not None else "con", found[0])


class TracebackLine(NamedTuple):
    """A line about your own code, about a library, or the exception."""

    text: str
    kind: str


def traceback(text: str) -> list[TracebackLine]:
    """Its lines, each with whose code it is about: own, lib, raised."""
    lines, kind = [], ""
    for line in text.rstrip("\n").split("\n"):
        if frame := _FRAME.match(line):
            kind = "lib" if is_library(frame[1]) else "own"
        elif line[:1] not in (" ", ""):
            kind = "" if line.startswith(("Traceback ", "During ", "The above ")) else "raised"
        lines.append(TracebackLine(line, kind))
    return lines


def own(lines: list[TracebackLine]) -> list[TracebackLine]:
    """What to read first: your own frames and the exception. All lines if there is no frame of yours."""
    kept = [line for line in lines if line.kind in ("own", "raised")]
    return kept if any(line.kind == "own" for line in kept) else lines


def is_library(path: str) -> bool:
    return bool(_LIBRARY.search(path)) or path.startswith(sysconfig.get_paths()["stdlib"])


def marked(lines: list[TracebackLine]) -> Markup:
    span = Markup('<span class="{}">{}</span>')
    return Markup("\n").join(span.format(line.kind, line.text) if line.kind else line.text for line in lines)
