"""No pattern takes quadratic time, whatever text is stored: every one that sees such text, by what calls it."""

from __future__ import annotations

import ast
import contextlib
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from treadle import errors, filters, ids, logs, units, views
from treadle.cli import output
from treadle.cli.base import Shared
from treadle.contrib import otel
from treadle.dedupe import key_for
from treadle.errors import BadFilter, BadOption
from treadle.filters import Filter
from treadle.outcome import Outcome, OutcomeKind
from treadle.program import Program, _called
from treadle.redact import DEFAULT, without_password
from treadle.stores.libsql import url as libsql_url
from treadle.stores.postgres import roles
from treadle.stores.shared import filter_sql
from treadle.web import highlight
from treadle.web.api import stats
from treadle.web.formatting import Formatter
from treadle.web.proxy_login import ProxyLogin

SOURCE = Path(__file__).parents[2] / "src" / "treadle"
SMALL, LARGE = 4 << 10, 64 << 10
FACTOR = 64
"""16 times the text takes about 16 times as long, or 256 times if the pattern is quadratic."""
NOTHING = 0.01
"""Seconds. A quadratic pattern takes longer for the large text."""

UNITS = [
    "a",
    "A",
    "aB",
    "é",
    "😀",
    "_",
    "-",
    ".",
    "a.",
    "1",
    "1 ",
    " ",
    "\t",
    "\n",
    "\r",
    "\x1b",
    "\u2028",
    "x\ny",
    ",",
    "*",
]
UNITS += [
    "=",
    ":",
    "=>",
    ": ",
    "a=",
    "a:",
    "\\",
    '"',
    "'",
    '\\"',
    '"""',
    "]",
    "[",
    "(",
    "{",
    "}",
    "@",
    "/",
    "/*",
    "|",
    "%5B",
]
UNITS += [
    "token",
    "token ",
    "token=",
    "token:",
    "token: ",
    "token=a ",
    "treadle jobs ",
    "token=a=",
    "token=1 ",
    "token=a,",
    "tokenA",
    "a token",
]
UNITS += [
    'token="',
    "token='",
    'token=\\"',
    'token="""',
    "token=[",
    "token=(",
    "token={",
    "token=[']",
    '"token":null',
    '"token":1',
]
UNITS += [
    "token: Bearer ",
    "Authorization: ",
    "authorization",
    "token: a|",
    "token: a | a",
    "token=-----BEGIN ",
    "-----BEGIN ",
]
UNITS += [
    "api key: ",
    "api key ",
    "api",
    "private key=",
    "://",
    "://a:",
    "://a:@",
    "://:1",
    "://a:b@c ",
    "password='",
    "authtoken=",
]
UNITS += [
    '  File "',
    'File "a", line ',
    "/lib/python3",
    "/treadle/",
    "2026-01-01 00:00:00 UTC",
    "2026-01-01 ",
    "1s",
    "1.",
    "type,",
]
TEXTS: list[Callable[[int], str]] = [lambda n, unit=unit: unit * (n // len(unit)) for unit in UNITS]  # type: ignore[misc]
ENDS = [
    ("token", "=a"),
    ("token=", ""),
    ('token="', ""),
    ("token=[", "]"),
    ('"', '": 1'),
    ("://", ":b@c"),
    ("://a:", "@c"),
    (" ", 'File "'),
]
TEXTS += [
    lambda n, ends=ends, unit=unit: ends[0] + unit * (n // len(unit)) + ends[1]  # type: ignore[misc]
    for ends in ENDS
    for unit in (" ", "\\")
]
TEXTS += [lambda n, seed=seed: "".join(random.Random(seed).choices(UNITS, k=n // 4))[:n] for seed in range(3)]  # type: ignore[misc]

Door = Callable[[str], Any]


def visible(text: str) -> None:
    with contextlib.suppress(BadFilter):
        views.visible(Filter(errors=((text,),)), DEFAULT)
    with contextlib.suppress(BadFilter):
        views.visible(Filter(payload=((text, (text,)),)), DEFAULT)


def parse(text: str) -> None:
    with contextlib.suppress(BadFilter):
        filters.parse(text)
    filters._TERM.match(text)  # which `parse` gives shorter texts only
    filters._VALUE.match(text)
    filters._COMPARED.fullmatch(text)
    filters._value(text, None, None)
    filters.is_index(text)
    str(Filter(errors=((text,),)))


def traceback(text: str) -> None:
    lines = highlight.traceback(text)
    highlight.marked(highlight.own(lines))
    highlight.is_library(text)
    otel._exception_type(Outcome(OutcomeKind.FAILED, error=text, traceback=text))
    otel._EXCEPTION.match(text)


def options(text: str) -> None:
    with contextlib.suppress(BadOption):
        key_for(text, "type", "", {})
    with contextlib.suppress(errors.BadURL):
        libsql_url.read(f"libsql://host?authToken={text}")
    with contextlib.suppress(msgspec.ValidationError):
        msgspec.convert(text, stats.Groups)
    roles._NAME.fullmatch(text)
    filter_sql._PLAIN.fullmatch(text)
    units.parse_duration(text)
    ids.ids_from(text)
    ids.is_id(text)
    with contextlib.suppress(BadOption):
        ProxyLogin(None, text, ())  # type: ignore[arg-type]


DOORS: dict[str, Door] = {
    "a text is redacted": DEFAULT.text,
    "a key is redacted": lambda text: DEFAULT.value({text: 1}),
    "a filter is limited": visible,
    "an error is shown": without_password,
    "a filter is parsed": parse,
    "JSON is colored": lambda text: highlight.json({text: text}),
    "a traceback is colored": traceback,
    "a sentence is localized": Formatter(now=datetime.now(UTC)).localized,
    "a line is cleaned": lambda text: (output.clean(text), logs.printable(text)),
    "an option is checked": options,
    "a hint gets options": Shared(db="sqlite:///a.db", app="app:td").hint,
    "a text names the program": lambda text: _called(text, Program("manage.py treadle", "app:td", "migrate", "GRANT")),
}


@pytest.mark.parametrize("name", DOORS)
def test_the_time_grows_with_the_length_of_the_text(name: str) -> None:
    for make in TEXTS:
        assert is_linear(DOORS[name], make), f"{make(60)!r}…"


def is_linear(door: Door, make: Callable[[int], str]) -> bool:
    """By the processor's time, in the same run. What looks slow is measured again."""
    small, large = make(SMALL), make(LARGE)
    return any((took := seconds(door, large)) < NOTHING or took < FACTOR * seconds(door, small) for _ in range(3))


def seconds(door: Door, text: str) -> float:
    began = time.thread_time()
    door(text)
    return time.thread_time() - began


def test_a_quadratic_pattern_would_be_found() -> None:
    import re

    quadratic = re.compile(r"(token)\w*\s*=")
    assert not is_linear(quadratic.search, lambda n: "token" * (n // 64))


# No pattern is forgotten

SEES = {
    "contrib.otel": {"_EXCEPTION"},
    "dedupe": {"_UNSTORABLE"},
    "cli.base": {"HINTED", "Shared"},
    "ids": {"_ID", "ids_from"},
    "filters": {"_TERM", "_VALUE", "_COMPARED", "_BROKEN", "_value", "is_index", "_quoted"},
    "program": {"_called"},
    "redact": {
        *("_WORD_ENDS", "_any_of", "_SEPARATOR", "_REVERSED_NAME", "_QUOTED", "_PIECE", "_PEM", "_LITERAL", "_SCHEME"),
        *("_NUMBERS", "_BARE", "_LINE", "_CONTINUED", "_USER", "_INSIDE_QUOTES", "_UP_TO_SPACE", "_SECRET"),
    },
    "stores.libsql.url": {"_token"},
    "stores.postgres.roles": {"_NAME"},
    "stores.shared.filter_sql": {"_PLAIN"},
    "units": {"_PART", "parse_duration"},
    "web.formatting": {"_UTC"},
    "web.proxy_login": {"ProxyLogin"},
    "web.highlight": {"_TOKEN", "_FRAME", "_LIBRARY"},
}
"""The patterns that see stored or given text. Each is behind one of the doors above."""
BLIND = {
    "signature": {"_CONTEXT"},  # an annotation in the handler's code
    "stores.libsql.hrana": {"_TOKEN"},  # statements: ours, and in a transaction those of the handler's code
    "stores.postgres.placeholders": {"NAME"},  # our statements
    "stores.sqlite.sql": {"from_postgres"},
    "stores.user_connections.detect": {"way_out_of_factory"},  # the name of a class
    "stores.user_connections.drivers": {"_NAMED"},
    "web.openapi": {"_operation", "_path_parameters"},  # our paths
    "web.problem": {"_of_error"},  # the name of a class
    "worker.host": {"out_of_memory_kills"},  # a file of the kernel
}
"""The patterns that see our own text only."""


def patterns(path: Path) -> Iterator[str]:
    """What holds or uses a pattern: a name at the top of the module, or a function."""
    for node in ast.parse(path.read_text("utf-8")).body:
        name = getattr(node, "name", "") or ast.unparse(getattr(node, "targets", [None])[0] or ast.Name("?"))
        uses = [n.func.value for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
        if any(isinstance(used, ast.Name) and used.id == "re" for used in uses) and not isinstance(node, ast.Import):
            yield name


def test_no_pattern_is_forgotten() -> None:
    found = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts): set(patterns(path))
        for path in sorted(SOURCE.rglob("*.py"))
    }
    assert {module: names for module, names in found.items() if names} == SEES | BLIND
