"""A handler's parameters: a payload must fit them when it is enqueued, and again when it runs."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from functools import cached_property, partial
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from treadle import codec
from treadle.errors import BadArguments, BadHandler, NotJSON
from treadle.json_types import convert, decoder, from_builtin, readable, schema_of

log = logging.getLogger("treadle")

TAKE = "annotate its parameters with types that JSON can represent; instead of a row or a session, take an id"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_UNFIT = {
    inspect.Parameter.POSITIONAL_ONLY: "{!r} is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "it takes *{}",
    inspect.Parameter.VAR_KEYWORD: "it takes **{}",
}
"""Kinds of parameters that a JSON object cannot fill."""
_CONTEXT = re.compile(r"(?:[^\[]*\b(?:Optional|Union|Annotated)\[)*[^\[]*\bContext\b")
"""The text of an annotation with a Context that is injected: also `None | Context`, but not `list[Context]`."""


MAX_SCHEMA = 16 << 10
"""Characters of a published schema. Every type has one, and a form with more fields than that helps nobody."""


class Signature:
    """The parameters that a payload fills, in order, without the injected Context."""

    def __init__(self, handler: Callable[..., Any], name: str, context: type) -> None:
        parameters = list(inspect.signature(handler).parameters.values())
        hints = _hints(handler)
        first = parameters[0] if parameters and parameters[0].kind in _POSITIONAL else None
        self.takes_context = first is not None and _is_context(hints.get(first.name), context)
        if self.takes_context:
            parameters = parameters[1:]
        elif first is not None and hints.get(first.name) is Any and _needs_context(first):
            problem = f"{first.name!r} is a {first.annotation}, a name that its module does not have when it runs"
            raise BadHandler(name, problem, "import it at the top, and not only `if TYPE_CHECKING`")
        for p in parameters:
            if p.kind in _UNFIT:
                problem = _UNFIT[p.kind].format(p.name)
                raise BadHandler(name, problem, "use named parameters: a payload is a JSON object")
            if _is_context(hints.get(p.name), context):
                raise BadHandler(name, f"{p.name!r} is a Context, but not its first parameter", "put it first")
        self.name = name
        self.names = tuple(p.name for p in parameters)
        self._required = frozenset(p.name for p in parameters if p.default is p.empty)
        self._hints = {p: hints.get(p, Any) for p in self.names}
        resolved = [p if p.annotation is p.empty else p.replace(annotation=self._hints[p.name]) for p in parameters]
        self._text = str(inspect.Signature(resolved))
        self._fields = frozenset(self.names)
        self._struct = _struct(name, self._hints, self._required)
        self._decode: Callable[[str], Any] = decoder(self._struct, from_builtin)
        self._result = _readable_result(name, handler)
        self._warned = False

    @cached_property
    def schema(self) -> str:
        """Its parameters as a JSON schema, for forms; '' if it is too large. Without defaults, which may be secrets."""
        found = msgspec.json.schema(self._struct, schema_hook=schema_of)
        others = dict(found.get("$defs", {}))
        own = others.pop(found["$ref"].rpartition("/")[2])
        required = [name for name in self.names if name in self._required]
        schema = {"type": "object", "properties": own["properties"], "required": required}
        text = codec.as_json({**schema, "additionalProperties": False, **({"$defs": others} if others else {})})
        return text if len(text) <= MAX_SCHEMA else ""

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The call's arguments by name. Positional ones are assigned as a call of the function assigns them."""
        if len(args) > len(self.names):
            raise BadArguments(self.name, f"{len(args)} positional arguments", self._text)
        named = dict(zip(self.names, args, strict=False))
        if twice := named.keys() & kwargs.keys():
            raise BadArguments(self.name, f"{sorted(twice)[0]!r} was given twice", self._text)
        return {**named, **kwargs}

    def from_json(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments that decoded JSON says: a text is the enum or the date that the handler takes. What does not
        fit stays as it is, and `encode` refuses it."""
        try:
            values = msgspec.convert(payload, self._struct, str_keys=True, dec_hook=from_builtin)
        except (msgspec.ValidationError, RecursionError):
            return payload
        return {name: getattr(values, name) for name in payload}

    def encode(self, arguments: Mapping[str, Any]) -> str:
        """The payload as JSON. It is refused unless each argument comes back from JSON unchanged."""
        given = arguments.keys()
        if not (self._required <= given <= self._fields):
            self._refuse(given)
        before = self._struct(**arguments)
        try:
            text = codec.to_json(before, self.name, self.name)
            if self._decode(text) == before:
                return text
        except (NotJSON, msgspec.MsgspecError):
            pass  # `_blame` finds out which argument
        raise self._blame(arguments)

    def decode(self, payload: str) -> dict[str, Any]:
        """The handler's arguments from a stored payload, which an older deploy may have written."""
        try:
            values = self._decode(payload)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise BadArguments(self.name, f"the stored payload does not fit: {error}", self._text) from None
        arguments = msgspec.structs.asdict(values)
        if msgspec.UnsetType in map(type, arguments.values()):
            arguments = {name: value for name, value in arguments.items() if value is not msgspec.UNSET}
            if not self._required <= arguments.keys():
                self._refuse(arguments.keys())
        return arguments

    def result(self, stored: Any) -> Any:
        """A stored result as the type that the handler says it returns. One that does not fit stays as it is: its work
        is done, or an older deploy has written it. That is logged once."""
        if stored is None or self._result in (Any, None):  # `-> None` may still ctx.complete(result)
            return stored
        try:
            return convert(stored, self._result)
        except (msgspec.ValidationError, RecursionError) as error:
            if not self._warned:
                self._warned = True
                text = "a result of %s does not fit %s and is returned as it was stored: %s"
                log.warning(text, self.name, _shown(self._result), error)
            return stored

    def _refuse(self, given: Any) -> None:
        if unknown := sorted(set(given) - self._fields):
            raise BadArguments(self.name, f"unknown argument {unknown[0]!r}", self._text)
        missing = sorted(self._required - set(given))
        raise BadArguments(self.name, f"missing argument {missing[0]!r}", self._text)

    def _blame(self, arguments: Mapping[str, Any]) -> NotJSON:
        """Find the argument that would not come back unchanged."""
        for name, value in arguments.items():
            where, hint = f"{self.name}: {name}", self._hints[name]
            try:
                text = codec.to_json(value, self.name, where)
                if decoder(_readable_or_any(hint), from_builtin)(text) != value:
                    return NotJSON(where, value, _how_to_keep(hint, value))
            except NotJSON as error:
                return error
            except msgspec.MsgspecError as error:
                return NotJSON(where, value, str(error), f"does not fit {_shown(hint)}")
        return NotJSON(self.name, dict(arguments), "it would come back as a different value")


def _hints(handler: Callable[..., Any]) -> dict[str, Any]:
    """The annotations as types. One that cannot be resolved, such as a TYPE_CHECKING import, counts as Any."""
    function: Any = inspect.unwrap(handler)
    space = getattr(function, "__globals__", {})
    return {name: _resolved(hint, space) for name, hint in getattr(function, "__annotations__", {}).items()}


def _resolved(hint: Any, space: dict[str, Any]) -> Any:
    """An annotation as a type, also if it, or a part of it, is a text."""
    holder = SimpleNamespace(__annotations__={"hint": hint})
    try:
        found = get_type_hints(holder, space, include_extras=True)["hint"]
    except Exception:
        return Any
    return None if found is NoneType else found


def _is_context(hint: Any, context: type) -> bool:
    if get_origin(hint) in (Union, UnionType, Annotated):
        return any(_is_context(one, context) for one in get_args(hint))
    return hint is context


def _needs_context(first: inspect.Parameter) -> bool:
    """Whether the handler cannot run without a Context whose annotation cannot be resolved.

    With a default it can, and the annotation may mean a Context of the app's own.
    """
    return first.default is first.empty and _CONTEXT.match(str(first.annotation)) is not None


def _readable_result(name: str, handler: Callable[..., Any]) -> Any:
    """The type that a handler returns. One that cannot be stored is refused now: later, its work would be done."""
    hint = _hints(handler).get("return", Any)
    try:
        return readable(hint)
    except (TypeError, NameError) as error:
        way_out = "return what JSON can represent, or nothing, and annotate that"
        raise BadHandler(name, f"it returns {_shown(hint)}, which cannot be stored: {error}", way_out) from error


def returned(function: Callable[..., Any]) -> Any:
    """The type that a function says it returns, or that its awaitable has. Any if it does not say, or JSON has none."""
    while isinstance(function, partial):
        function = function.func
    hint = function if isinstance(function, type) else _hints(function).get("return", Any)
    if get_origin(hint) in (Awaitable, Coroutine):
        hint = get_args(hint)[-1]
    return _readable_or_any(hint)


def _struct(name: str, hints: Mapping[str, Any], required: Collection[str]) -> Any:
    """A struct with a field per parameter, so that one decode checks them all. A missing argument stays UNSET."""
    try:
        known = {n: readable(hint) if n in required else _readable_or_any(hint) for n, hint in hints.items()}
        fields = [(n, hint | msgspec.UnsetType if _unites(hint) else Any, msgspec.UNSET) for n, hint in known.items()]
        struct = msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=True)
        decoder(struct)
    except (TypeError, NameError) as error:
        raise BadHandler(name, str(error), TAKE) from error
    return struct


def _readable_or_any(hint: Any) -> Any:
    """Any if JSON has no form for it. A parameter with a default may be for tests alone, such as a client: no payload
    has to fill it."""
    try:
        return readable(hint)
    except (TypeError, NameError):
        return Any


def _unites(hint: Any) -> bool:
    try:
        return bool(hint | msgspec.UnsetType)
    except TypeError:
        return False


def _shown(hint: Any) -> str:
    return str(hint if get_args(hint) else getattr(hint, "__name__", hint))


def _how_to_keep(hint: Any, value: Any) -> str:
    if isinstance(value, float):
        return "JSON has no such number; pass None or a string"
    if hint is Any:
        return f"annotate the parameter ({type(value).__name__}), or pass strings, numbers, lists and dicts"
    if isinstance(value, dict) and isinstance(hint, type) and not issubclass(hint, dict):
        return f"the handler takes {hint.__name__}; pass {hint.__name__}(**…), or annotate the parameter with dict"
    says = "pass strings, numbers, lists and dicts" if Any in get_args(hint) else f"the handler takes {_shown(hint)}"
    return f"it would come back as a different value; {says}"
