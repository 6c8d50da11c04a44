"""JSON in and out. A value that would not come back unchanged is refused before it is stored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from treadle.errors import BadCursor, NotJSON, PayloadTooDeep, PayloadTooLarge
from treadle.json_types import decoder, to_builtin

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_ERROR = 16 * 1024

T = TypeVar("T")

encode = msgspec.json.Encoder(enc_hook=to_builtin).encode
decode = msgspec.json.Decoder().decode


def decode_as(text: str, kind: type[T]) -> T | None:
    """JSON text that has this type; None if it was broken by hand."""
    try:
        found: T = decoder(kind)(text)
        return found
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def read_cursor(cursor: object, kind: type[T]) -> T:
    """The cursor of a page, which `as_json` wrote."""
    found = decode_as(cursor, kind) if isinstance(cursor, str) else None
    if found is None:
        raise BadCursor(cursor)
    return found


def as_json(value: object) -> str:
    """A batch of rows as one JSON text, the parameter of a statement."""
    return encode(value).decode()


def to_json(value: Any, type: str, where: str, what: str = "payload") -> str:
    """`value` as JSON text within the limits; errors name it by `where`, and by `what` if it is too large."""
    try:
        data = encode(value)
    except RecursionError:
        raise PayloadTooDeep(type, MAX_DEPTH, what) from None
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        way_out = getattr(error, "way_out", "pass numbers, strings, lists and dicts")
        raise NotJSON(where, value, f"{error}; {way_out}") from error
    if len(data) > MAX_BYTES:
        raise PayloadTooLarge(type, len(data), MAX_BYTES, what)
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _too_deep(data):
        raise PayloadTooDeep(type, MAX_DEPTH, what)
    if b"null" in data and any(isinstance(one, float) and not math.isfinite(one) for one in _scalars(value)):
        raise NotJSON(where, value, "JSON has no NaN and no infinity; pass None or a string")
    if b"\\u0000" in data and any(isinstance(one, str) and "\0" in one for one in _scalars(decode(data))):
        raise NotJSON(where, value, "a NUL character cannot be stored in every database; remove it")
    return data.decode()


def to_json_exact(value: Any, type: str, where: str) -> str:
    """`value` as JSON text. It is refused unless JSON gives back the same value."""
    text = to_json(value, type, where)
    if decode(text) != value:
        way_out = "it would come back as a different value; convert it first, for example a date to a string"
        raise NotJSON(where, value, way_out)
    return text


def result_to_json(value: Any, type: str) -> str | None:
    """A handler's result as JSON text; None stays None."""
    return None if value is None else to_json(value, type, "the result", "result")


def plain(value: Any) -> Any:
    """A value as decoded JSON has it: a model is a dict, a date is a text."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=to_builtin)


def clip(text: str | None, limit: int = MAX_ERROR) -> str | None:
    """Error text that every database accepts, limited in length. The end matters most."""
    if text is None:
        return None
    text = clean(text)
    return text if len(text) <= limit else f"…{text[-limit:]}"


def clean(text: str) -> str:
    """Text that every database accepts: no NUL, no lone surrogate."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _too_deep(data: bytes) -> bool:
    try:
        return _depth(decode(data)) > MAX_DEPTH
    except RecursionError:
        return True


def _depth(value: Any) -> int:
    """How many levels a decoded value has."""
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _scalars(value: Any) -> Iterator[Any]:
    """The keys and values in it that have no parts."""
    if isinstance(value, dict):
        yield from value
    if isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _scalars(part)
    else:
        yield value
