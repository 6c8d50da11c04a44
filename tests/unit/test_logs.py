"""A record of treadle is one line without control characters, whatever handler and formatter an app has."""

from __future__ import annotations

import ast
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle import logs

SOURCE = Path(__file__).parents[2] / "src" / "treadle"
FORGED = "no\n2026-11-01 08:00:00 ERROR forged\r\x1b[31m\x07\u2028\x85end"


@pytest.fixture(params=logs.LOGGERS)
def log(request: pytest.FixtureRequest) -> logging.Logger:
    return logging.getLogger(request.param)


@pytest.fixture
def stream(log: logging.Logger) -> Iterator[io.StringIO]:
    """What a plain handler of the app's own writes."""
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    log.addHandler(handler)
    yield handler.stream
    log.removeHandler(handler)


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().removesuffix("\n").split("\n")


def test_a_newline_in_a_text_does_not_start_a_line(log: logging.Logger, stream: io.StringIO) -> None:
    log.warning("job %s failed: %s", 7, ValueError(FORGED))
    [line] = lines(stream)
    assert line == r"WARNING job 7 failed: no\n2026-11-01 08:00:00 ERROR forged\r\x1b[31m\x07\u2028\x85end"


def test_a_record_without_control_characters_stays_as_it_is(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    """Services that collect records group them by the text before its arguments are filled in."""
    log.warning("%d jobs of %s: é 😀", 3, "acme")
    [record] = caplog.records
    assert (record.msg, record.args) == ("%d jobs of %s: é 😀", (3, "acme"))


def test_the_lines_of_a_traceback_cannot_be_taken_for_records(log: logging.Logger, stream: io.StringIO) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.exception("a hook failed")
    first, *others = lines(stream)
    assert first == "ERROR a hook failed"
    assert others[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") and line.isprintable() for line in others)
    assert r"forged\r\x1b[31m" in others[-1]


def test_the_traceback_of_a_job_ends_without_a_blank_line(log: logging.Logger, stream: io.StringIO) -> None:
    log.warning("job 7 failed", extra={"traceback": "Traceback:\n  in send\nOSError: no\n"})
    assert lines(stream) == ["WARNING job 7 failed", "  Traceback:", "    in send", "  OSError: no"]


def test_an_argument_that_cannot_be_printed_does_not_raise(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    monkeypatch.setattr(logging, "raiseExceptions", False)
    log.warning("%s", Broken())


def test_every_logger_of_treadle_is_made_safe() -> None:
    calls = [
        node
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger" and path.name != "logs.py"
    ]
    names = {ast.literal_eval(node.args[0]) for node in calls}
    assert names == set(logs.LOGGERS)
    for name in names:
        assert logs.make_safe in logging.getLogger(name).filters
