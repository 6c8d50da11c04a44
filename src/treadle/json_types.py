"""Types that JSON does not have and msgspec does not know: pydantic's models, paths, time zones, and some unions."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Never, NoReturn, Union, cast, get_args, get_origin
from zoneinfo import ZoneInfo

import msgspec
from msgspec import inspect

_reading_annotations = threading.RLock()


class OneOf(type):
    """A union that msgspec refuses, as a class of its own: its values are read by trying each member."""

    members: tuple[Any, ...]

    def __instancecheck__(cls, value: object) -> bool:
        return True


class NoForm(TypeError):
    """JSON has no form for this value."""

    def __init__(self, value: object) -> None:
        kind = type(value)
        super().__init__(f"Encoding objects of type {kind.__name__} is unsupported")
        self.way_out = "pass numbers, strings, lists and dicts"
        if hasattr(kind, "_meta") and hasattr(kind, "pk"):  # a model of Django
            self.way_out = f"pass {kind.__name__.lower()}.pk, and load the row in the handler"


def to_builtin(value: Any) -> Any:
    """The JSON form of a value, for msgspec, which asks for what it does not know."""
    if (adapter := _adapter(type(value))) is not None:
        return adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings=False)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, ZoneInfo) and value.key is not None:
        return value.key
    raise NoForm(value)


def from_builtin(kind: Any, value: Any) -> Any:
    """The value of this type that has this JSON form. What does not fit is a ValueError."""
    if isinstance(kind, OneOf):
        return _read_one_of(kind.members, value)
    if kind is object or type(value) is kind:  # `convert` reads Python's values, too
        return value
    if (adapter := _adapter(kind)) is not None:
        return _validated(adapter, value)
    if not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    if issubclass(kind, PurePath):
        return kind(value)
    try:
        return kind(value)
    except KeyError:  # no such time zone
        raise ValueError(f"There is no time zone {value!r} here") from None


def decoder(kind: Any, dec_hook: Callable[[Any, Any], Any] | None = None) -> Callable[[str | bytes | bytearray], Any]:
    """What decodes JSON as this type. msgspec reads the annotations of a class before it decodes one for the first
    time. If threads do so at once, the process crashes (0.22)."""
    with _reading_annotations:
        return msgspec.json.Decoder(kind, dec_hook=dec_hook).decode


def convert(value: Any, kind: Any) -> Any:
    """Decoded JSON as this type, which is `readable`. Raises msgspec.ValidationError. It is read from text again:
    msgspec's own `convert` does not call hooks for the keys of a dict."""
    return decoder(kind, from_builtin)(msgspec.json.encode(value, enc_hook=to_builtin))


def readable(hint: Any) -> Any:
    """The same type, as msgspec can read it. Raises TypeError or NameError if JSON cannot represent it."""
    if hint in (NoReturn, Never) or isinstance(hint, str):  # a text is a name that was never resolved
        return Any
    found = _adapted(hint)
    for info in _parts(_type_info(found), set()):
        if isinstance(info, inspect.DictType) and not _may_be_key(info.key_type):
            raise TypeError("the keys of a JSON object are texts; use a list of pairs")
        if isinstance(info, inspect.CustomType) and (unknown := _unwritable(info.cls)) is not None:
            raise TypeError(f"JSON has no form for {getattr(unknown, '__qualname__', unknown)}")
    return found


def _type_info(hint: Any) -> inspect.Type:
    """How msgspec describes an adapted hint. Unions in it are adapted, but not those in the fields of its classes."""
    try:
        return inspect.type_info(hint)
    except TypeError as error:
        if "union" not in str(error):
            raise
        raise TypeError(f"{error} in a field; a field of a pydantic model may have this type") from error


def schema_of(kind: Any) -> dict[str, Any]:
    """A JSON schema for forms. Of a model, without its members: their defaults may be secrets."""
    if not isinstance(kind, OneOf) and issubclass(kind, PurePath | ZoneInfo):
        return {"type": "string"}
    return {"title": kind.__name__, **({"type": "object"} if hasattr(kind, "model_fields") else {})}


def _adapted(hint: Any) -> Any:
    """The hint, with a class of its own instead of each union that msgspec refuses."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[(_adapted(args[0]), *hint.__metadata__)]
    if origin in (Union, UnionType):
        return _united([_adapted(one) for one in args])
    if origin in (list, set, frozenset, tuple, dict) or getattr(origin, "__module__", "") == "collections.abc":
        return cast(Any, origin)[tuple(one if one is ... else _adapted(one) for one in args)] if args else hint
    return hint


def _united(members: list[Any]) -> Any:
    """Their union. Of objects there may be several: their members tell them apart. Of texts there may be one."""
    union: Any = Union[tuple(members)]  # noqa: UP007
    try:
        inspect.type_info(union)
    except TypeError:
        others = tuple(one for one in members if not _is_object(readable(one)))
        inspect.type_info(Union[(None, *(_STAND_INS.get(one, one) for one in others))])  # raises TypeError, too
        chosen = OneOf("OneOf", (), {"members": tuple(one for one in members if one is not NoneType)})
        return chosen | None if NoneType in members else chosen
    return union


_STAND_INS: dict[Any, Any] = {Path: bytes, PurePath: bytes, ZoneInfo: bytearray}
"""Types that msgspec knows, and that are texts in JSON."""


def _is_object(hint: Any) -> bool:
    objects = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
    return _adapter(hint) is not None or isinstance(inspect.type_info(hint), objects)


def _read_one_of(members: Sequence[Any], value: Any) -> Any:
    """The first member that the value fits and that keeps all of it, or else the first that it fits."""
    fitting = []
    for member in members:
        try:
            fitting.append(convert(value, member))
        except msgspec.ValidationError:
            continue
    if not fitting:
        raise ValueError(f"It fits none of {', '.join(getattr(one, '__name__', str(one)) for one in members)}")
    return next((one for one in fitting if _written(one) == value), fitting[0])


def _written(value: Any) -> Any:
    """Its JSON form, with all fields: msgspec leaves defaults of a dataclass to its class, and does not write them."""
    whole = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    return msgspec.to_builtins(whole, str_keys=True, enc_hook=to_builtin)


def _parts(info: Any, seen: set[int]) -> Generator[inspect.Type]:
    """A type and the types in it, as msgspec describes them."""
    if isinstance(info, tuple):
        for part in info:
            yield from _parts(part, seen)
    elif isinstance(info, inspect.Type | inspect.Field) and id(info) not in seen:
        seen.add(id(info))
        if isinstance(info, inspect.Type):
            yield info
        for name in info.__struct_fields__:
            yield from _parts(getattr(info, name), seen)


_KEYS = (
    inspect.AnyType,
    inspect.StrType,
    inspect.IntType,
    inspect.FloatType,
    inspect.EnumType,
    inspect.LiteralType,
    inspect.BytesType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
)
"""What msgspec writes as the key of an object."""


def _may_be_key(info: inspect.Type) -> bool:
    if isinstance(info, inspect.UnionType):
        return all(map(_may_be_key, info.types))
    if isinstance(info, inspect.CustomType) and isinstance(info.cls, OneOf):
        return all(_may_be_key(inspect.type_info(one)) for one in info.cls.members)
    return isinstance(info, _KEYS) or (isinstance(info, inspect.CustomType) and not hasattr(info.cls, "model_fields"))


def _unwritable(kind: Any) -> Any:
    """The class in a type that is left to our hooks, or itself, that they cannot write; None if they can write all."""
    if kind is object or isinstance(kind, OneOf):
        return None
    if (adapter := _adapter(kind)) is not None:
        return _unwritable_in(getattr(adapter, "core_schema", None))
    return None if issubclass(kind, PurePath | ZoneInfo) else kind


def _unwritable_in(schema: Any) -> Any:
    """The class in pydantic's schema of a model that it can check, but not write: `arbitrary_types_allowed`."""
    if isinstance(schema, list | tuple):
        return next((found for one in schema if (found := _unwritable_in(one)) is not None), None)
    if not isinstance(schema, dict) or "serialization" in schema or schema.get("serialization_exclude"):
        return None
    match schema.get("type"):
        case "is-instance":
            kind = schema["cls"]
            plain = issubclass(kind, str | int | float | list | tuple | dict) or issubclass(str, kind)  # Hashable
            return None if plain else kind
        case "callable":
            return Callable
        case "json-or-python":
            return _unwritable_in(schema["json_schema"])
        case "lax-or-strict":
            return _unwritable_in(schema["strict_schema"])
    return _unwritable_in([schema[part] for part in schema.keys() - {"metadata", "config", "default"}])


def _adapter(kind: Any) -> Any:
    """Pydantic's adapter of one of its types, or None. It is imported only if the app has done so."""
    if hasattr(kind, "__get_pydantic_core_schema__") and "pydantic" in sys.modules:
        return _pydantic_adapter(kind)
    return None


@cache
def _pydantic_adapter(kind: Any) -> Any:
    return sys.modules["pydantic"].TypeAdapter(kind)


def _validated(adapter: Any, value: Any) -> Any:
    """As JSON: strict models take a date from a text only there. The error has no values, which may be secrets."""
    try:
        return adapter.validate_json(msgspec.json.encode(value, enc_hook=to_builtin))
    except ValueError as error:
        errors = getattr(error, "errors", None)
        if errors is None:
            raise
        found = errors(include_url=False, include_context=False, include_input=False)
        problems = [": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"]))) for one in found]
        raise ValueError("; ".join(problems)) from None
