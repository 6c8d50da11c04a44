"""Hrana over HTTP, the protocol of libSQL servers: several statements in one request, and a stream that remembers.

Our own client, and a small one: the driver on PyPI (libsql 0.1.11) holds the interpreter lock while it waits for
the server, so that a worker's heartbeat would stop whenever it waits for the write lock. It also makes a round trip
per statement.
"""

from __future__ import annotations

import base64
import http.client
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from treadle.stores.libsql.server import Address, NoResult, Refused, Server

Value = str | int | float | bytes | None
Parameters = Mapping[str, Any] | Sequence[Any]
Statement = tuple[str, Parameters]

_encode = msgspec.json.Encoder().encode


class Failed(NoResult):
    """A statement failed, and none after it was executed."""

    def __init__(self, message: str, code: str | None) -> None:
        super().__init__(message)
        self.code = code or ""


class Result(NamedTuple):
    rows: list[tuple[Value, ...]]
    changed: int


class _Cell(msgspec.Struct):
    type: str
    value: str | float | None = None
    base64: str | None = None


class _Result(msgspec.Struct):
    rows: list[list[_Cell]]
    affected_row_count: int = 0


class _Error(msgspec.Struct):
    message: str
    code: str | None = None


class _BatchResult(msgspec.Struct):
    step_results: list[_Result | None]
    step_errors: list[_Error | None]


class _StreamResponse(msgspec.Struct):
    type: str
    result: _BatchResult | None = None


class _StreamResult(msgspec.Struct):
    type: str
    response: _StreamResponse | None = None
    error: _Error | None = None


class _Pipeline(msgspec.Struct):
    baton: str | None
    results: list[_StreamResult]
    base_url: str | None = None


_decode = msgspec.json.Decoder(_Pipeline).decode


class Stream:
    """One conversation with the server: a transaction begun in one request goes on in the next."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._baton: str | None = None
        self._address: Address | None = None
        """Where the server wants the stream to go on: behind a balancer, only one of several knows it."""
        self.requests = 0

    def execute(self, statements: Sequence[Statement], *, last: bool) -> list[Result]:
        """Execute them in one request, each only if the one before it succeeded. With `last`, the stream ends."""
        steps: list[dict[str, Any]] = []
        for sql, parameters in statements:
            step: dict[str, Any] = {"stmt": {"sql": sql, "want_rows": True, **_arguments(sql, parameters)}}
            if steps:
                step["condition"] = {"type": "ok", "step": len(steps) - 1}
            steps.append(step)
        requests: list[dict[str, Any]] = [{"type": "batch", "batch": {"steps": steps}}] if steps else []
        if last:
            requests.append({"type": "close"})
        return self._results(self._send(requests))

    @property
    def open(self) -> bool:
        """Whether the server keeps something for us."""
        return self._baton is not None

    def _send(self, requests: Sequence[Mapping[str, Any]]) -> _Pipeline:
        baton, self._baton = self._baton, None
        self.requests += 1
        try:
            said = self._server.post(_encode({"baton": baton, "requests": requests}), self._address)
        except Refused:
            self._baton = baton  # nothing was done, and what was begun can still be ended
            raise
        try:
            answer = _decode(said)
        except msgspec.DecodeError as error:
            raise Refused(http.client.OK, said) from error
        self._baton = answer.baton
        if answer.baton and answer.base_url:
            self._address = self._server.elsewhere(answer.base_url)
        return answer

    def _results(self, answer: _Pipeline) -> list[Result]:
        results: list[Result] = []
        for part in answer.results:
            if part.error is not None:
                raise Failed(part.error.message, part.error.code)
            batch = part.response.result if part.response else None
            if batch is None:
                continue
            for error in batch.step_errors:
                if error is not None:
                    raise Failed(error.message, error.code)
            results += [
                Result([tuple(map(_value, row)) for row in result.rows], result.affected_row_count)
                for result in batch.step_results
                if result is not None
            ]
        return results


_TOKEN = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|\[[^]]*\]|--[^\n]*|/\*.*?\*/|[:@$?](\w+)""", re.DOTALL)
"""A parameter, or what may only look as if it had one: texts, names and comments."""


def _arguments(sql: str, parameters: Parameters) -> dict[str, Any]:
    if isinstance(parameters, Mapping):
        return {"named_args": [{"name": name, "value": _cell(parameters[name])} for name in _names(sql)]}
    return {"args": [_cell(value) for value in parameters]}


@cache
def _names(sql: str) -> tuple[str, ...]:
    """The parameters that a statement has: the server wants these and no others."""
    found = _TOKEN.findall(sql)
    return tuple(dict.fromkeys(name for name in found if name))


def _cell(value: Value | bool) -> dict[str, Any]:
    match value:
        case None:
            return {"type": "null"}
        case bool() | int():
            if not -(1 << 63) <= value < 1 << 63:
                raise OverflowError(f"{value} is too large for an integer of SQLite")
            return {"type": "integer", "value": str(int(value))}
        case float():
            return {"type": "float", "value": value}
        case str():
            return {"type": "text", "value": value}
        case bytes():
            return {"type": "blob", "base64": base64.b64encode(value).decode()}
    raise TypeError(f"{value!r} cannot be sent")


def _value(cell: _Cell) -> Value:
    match cell.type:
        case "integer":
            return int(cell.value or 0)
        case "float":
            return float(cell.value or 0)
        case "blob":
            text = cell.base64 or ""
            return base64.b64decode(text + "=" * (-len(text) % 4))  # the server leaves the padding out
    return None if cell.value is None else str(cell.value)
