"""The fields of a form for the arguments of a handler, made from the JSON schema that workers publish. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from treadle import codec
from treadle.errors import BadOption

Kind = Literal["text", "integer", "number", "boolean", "choice", "json"]
_KINDS: dict[str, Kind] = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}
_WAY_OUT: dict[str, str] = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "json": 'JSON, such as [1, 2] or {"a": 1}; a text needs quotes',
}


class Field(NamedTuple):
    """One argument, as a form asks for it."""

    name: str
    kind: Kind
    required: bool
    nullable: bool = False
    choices: tuple[str, ...] = ()
    """Of a choice: its values as JSON."""


def fields_of(schema: str) -> list[Field] | None:
    """The arguments, in order. None if there is no schema, or one that was broken by hand."""
    found: Any = codec.decode_as(schema, dict) if schema else None
    if not isinstance(found, dict) or not isinstance(properties := found.get("properties"), dict):
        return None
    required, others = found.get("required"), found.get("$defs")
    names = required if isinstance(required, list) else []
    definitions = others if isinstance(others, dict) else {}
    return [_field(name, one, name in names, definitions) for name, one in properties.items()]


def _field(name: str, schema: Any, required: bool, definitions: Mapping[str, Any]) -> Field:
    resolved = _resolved(schema, definitions)
    rest, nullable = [resolved], False
    if isinstance(either := resolved.get("anyOf"), list):
        rest = [_resolved(one, definitions) for one in either if one != {"type": "null"}]
        nullable = len(rest) < len(either)
    kind, choices = _kind(rest[0]) if len(rest) == 1 else ("json", ())
    return Field(name, kind, required, nullable, choices)


def _kind(schema: Mapping[str, Any]) -> tuple[Kind, tuple[str, ...]]:
    if isinstance(values := schema.get("enum"), list):
        return "choice", tuple(codec.as_json(value) for value in values)
    type = schema.get("type")
    return _KINDS.get(type, "json") if isinstance(type, str) else "json", ()


def _resolved(schema: Any, definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a reference refers to, one level deep: deeper ones are JSON for the form."""
    found = schema if isinstance(schema, dict) else {}
    if isinstance(reference := found.get("$ref"), str):
        found = definitions.get(reference.rpartition("/")[2], {})
    return found if isinstance(found, dict) else {}


def value_of(field: Field, text: str) -> Any:
    """The argument that a field says; UNSET if it is left out. Raises BadOption for a text that does not fit."""
    if not text.strip() and not (field.kind == "text" and field.required and not field.nullable):
        if field.required and not field.nullable:
            raise BadOption(field.name, text, "it is required")
        return None if field.required else UNSET
    if field.kind == "text":
        return text
    if field.kind == "choice":
        if text not in field.choices:
            raise BadOption(field.name, text, f"one of {', '.join(field.choices)}")
        return codec.decode(text)
    with contextlib.suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        value = codec.decode(text.strip())
        if _fits(field.kind, value):
            return value
    raise BadOption(field.name, text, f"use {_WAY_OUT[field.kind]}")


def _fits(kind: Kind, value: Any) -> bool:
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    return kind == "json" or (isinstance(value, int | float) and not isinstance(value, bool))
