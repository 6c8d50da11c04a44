"""A handler's parameters and the payload that fills them."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import inspect
import math
import uuid
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import codec
from treadle.errors import BadArguments, BadHandler, BadPayload, NotJSON, PayloadTooDeep, PayloadTooLarge
from treadle.signature import Signature


class Context:
    """A stand-in for treadle's Context."""


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    y: int = 0


@dataclasses.dataclass
class Episode:
    title: str
    published: datetime.datetime
    tags: set[str]


def signature(handler):
    return Signature(handler, handler.__name__, Context)


def of(hint):
    """The signature of a handler with one parameter of this annotation."""

    def handler(x): ...

    handler.__annotations__["x"] = hint
    return signature(handler)


# Accepted values are read back equal

storable = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
texts = st.text(storable, max_size=20)
floats = st.floats(allow_nan=False, allow_infinity=False)
ints = st.integers(-(2**63), 2**63 - 1)
json = st.recursive(
    st.none() | st.booleans() | ints | floats | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
moments = st.datetimes(timezones=st.none() | st.just(datetime.UTC))
HINTS = {
    "Any": (Any, json),
    "str": (str, texts),
    "int": (int, ints),
    "float": (float, floats),
    "bool": (bool, st.booleans()),
    "bytes": (bytes, st.binary()),
    "datetime": (datetime.datetime, moments),
    "date": (datetime.date, st.dates()),
    "timedelta": (datetime.timedelta, st.timedeltas(datetime.timedelta(-9999), datetime.timedelta(9999))),
    "uuid": (uuid.UUID, st.uuids()),
    "decimal": (decimal.Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    "enum": (Color, st.sampled_from(Color)),
    "literal": (Literal["a", "b"], st.sampled_from(["a", "b"])),
    "optional": (int | None, st.none() | ints),
    "list": (list[int], st.lists(ints)),
    "tuple": (tuple[int, str], st.tuples(ints, texts)),
    "tuple of many": (tuple[int, ...], st.lists(ints).map(tuple)),
    "set": (set[int], st.sets(ints)),
    "dict with int keys": (dict[int, str], st.dictionaries(ints, texts)),
    "struct": (Point, st.builds(Point, ints, ints)),
    "dataclass": (Episode, st.builds(Episode, texts, moments, st.sets(texts))),
    "constrained": (Annotated[int, msgspec.Meta(ge=0)], st.integers(0, 99)),
}


@pytest.mark.parametrize("name", HINTS)
def test_an_accepted_value_is_read_back_equal(name):
    hint, values = HINTS[name]
    fits = of(hint)

    @given(values)
    def round_trip(value):
        assert {"x": value} == fits.decode(fits.encode({"x": value}))

    round_trip()


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | moments
    | st.sampled_from(Color),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(st.characters()) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize(
    "hint", [Any, str, int, float, list[Any], dict[str, Any], datetime.datetime, int | None], ids=str
)
def test_any_value_is_read_back_equal_or_is_refused(hint):
    """A value is never stored and then different when the job runs."""
    fits = of(hint)

    @given(anything)
    def honest(value):
        try:
            payload = fits.encode({"x": value})
        except BadPayload:
            return
        assert {"x": value} == fits.decode(payload)
        assert "\\u0000" not in payload or "\\\\u0000" in payload

    honest()


REFUSED = {
    "NaN": (Any, math.nan),
    "NaN as float": (float, math.nan),
    "NaN as optional": (float | None, math.nan),
    "infinity": (float, math.inf),
    "NUL": (str, "a\0b"),
    "NUL in any": (Any, {"a": ["\0"]}),
    "lone surrogate": (str, "\ud800"),
    "bytes into Any": (Any, b"abc"),
    "set into Any": (Any, {1, 2}),
    "tuple into Any": (Any, (1, 2)),
    "tuple deep in Any": (Any, {"a": [(1, 2)]}),
    "dict with int keys into Any": (Any, {1: "a"}),
    "10**5000": (int, 10**5000),
    "10**5000 into Any": (Any, 10**5000),
    "datetime into Any": (Any, datetime.datetime(2026, 1, 1)),
    "text as int": (int, "7"),
    "float as int": (int, 1.5),
    "bool as int": (int, True),
    "None as int": (int, None),
    "int as text": (str, 7),
    "wrong literal": (Literal["a"], "b"),
    "out of bounds": (Annotated[int, msgspec.Meta(ge=0)], -1),
    "object": (Any, object()),
    "struct with wrong field": (Point, Point(x="7")),
}


@pytest.mark.parametrize(("hint", "value"), REFUSED.values(), ids=REFUSED)
def test_a_value_that_would_not_round_trip_is_refused_and_named(hint, value):
    with pytest.raises(NotJSON, match=r"^handler: x=") as error:
        of(hint).encode({"x": value})

    assert value is error.value.value


def test_the_refused_argument_among_several_is_named():
    def handler(good: int, bad: int, fine: str): ...

    with pytest.raises(NotJSON, match=r"^handler: bad='x'"):
        signature(handler).encode({"good": 1, "bad": "x", "fine": "y"})


def test_exactly_the_limit_is_accepted_and_one_byte_more_is_not():
    fits = of(str)
    room = codec.MAX_BYTES - len('{"x":""}')

    assert codec.MAX_BYTES == len(fits.encode({"x": "a" * room}))
    with pytest.raises(PayloadTooLarge):
        fits.encode({"x": "a" * (room + 1)})


@pytest.mark.parametrize("depth", [codec.MAX_DEPTH, 300, 480, 900, 950, 10_000])
def test_a_value_nested_too_deep_is_refused(depth):
    value = 0
    for _ in range(depth):
        value = [value]

    with pytest.raises(PayloadTooDeep):
        of(Any).encode({"x": value})


# Names


def typed(ctx: Context, a: int, b: str = "x", *, c: list[int] | None = None): ...


def test_the_context_is_injected_and_not_part_of_the_payload():
    takes = signature(typed)

    assert (True, ("a", "b", "c")) == (takes.takes_context, takes.names)


def test_a_first_parameter_of_another_type_is_part_of_the_payload():
    def handler(ctx: int): ...

    assert (False, ("ctx",)) == (signature(handler).takes_context, signature(handler).names)


def test_positional_arguments_are_bound_as_a_call_would():
    assert {"a": 1, "b": "y", "c": [2]} == signature(typed).bind((1, "y"), {"c": [2]})


def test_arguments_that_were_not_given_are_left_to_the_handlers_default():
    takes = signature(typed)

    assert '{"a":1}' == takes.encode({"a": 1})
    assert {"a": 1} == takes.decode('{"a":1}')


def test_none_that_was_given_is_kept():
    takes = signature(typed)

    assert {"a": 1, "c": None} == takes.decode(takes.encode({"a": 1, "c": None}))


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((1, "x", [2], 4), {}, "4 positional arguments"),
        ((1,), {"a": 1}, "'a' was given twice"),
    ],
)
def test_arguments_that_do_not_bind_are_refused(args, kwargs, problem):
    with pytest.raises(BadArguments, match=problem):
        signature(typed).bind(args, kwargs)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [({}, "missing argument 'a'"), ({"b": "x"}, "missing argument 'a'"), ({"a": 1, "z": 2}, "unknown argument 'z'")],
)
def test_names_that_do_not_fit_are_refused_with_the_signature(arguments, problem):
    with pytest.raises(BadArguments, match=problem) as error:
        signature(typed).encode(arguments)

    assert "a: " in str(error.value)


def test_a_handler_without_parameters_takes_an_empty_object():
    def handler(): ...

    assert "{}" == signature(handler).encode({})
    assert {} == signature(handler).decode("{}")


# Stored payloads


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "{",
        "null",
        "[]",
        '"x"',
        '{"x":',
        '{"x":"7"}',
        '{"y":1}',
        "{}",
        '{"x":1,"y":2}',
        "\ufffd",
        "[" * 5000,
        '{"x":1e999}',
    ],
)
def test_a_payload_that_does_not_fit_is_an_ordinary_error(payload):
    """A deploy changed the handler, or a person changed the row."""
    with pytest.raises(BadArguments, match="handler: "):
        of(int).decode(payload)


# Handlers


def test_parameters_that_a_json_object_cannot_fill_are_refused():
    def positional(x, /): ...
    def many(*xs): ...
    def named(**xs): ...

    def contexts(*xs: Context): ...
    def named_contexts(**xs: Context): ...

    starred, double_starred = (many, contexts), (named, named_contexts)
    refused = {positional: "'x' is positional-only"}
    refused |= dict.fromkeys(starred, r"\*xs") | dict.fromkeys(double_starred, r"\*\*xs")
    for handler, what in refused.items():
        with pytest.raises(BadHandler, match=f"{what}; use named parameters"):
            signature(handler)


def test_an_annotation_that_json_cannot_represent_is_refused():
    with pytest.raises(BadHandler, match="annotate its parameters with types that JSON can represent"):
        of(str | datetime.datetime)


def test_an_annotation_that_cannot_be_resolved_counts_as_any():
    def handler(x: "Missing", y: "list[Missing]"): ...  # noqa: F821, UP037

    takes = signature(handler)

    assert {"x": 1, "y": [2]} == takes.decode(takes.encode({"x": 1, "y": [2]}))


def test_a_name_inside_an_annotation_that_cannot_be_resolved_is_a_typed_error_or_any():
    def handler(x): ...

    handler.__annotations__["x"] = list["Missing"]  # noqa: F821
    try:
        takes = signature(handler)
    except BadHandler:
        return
    assert {"x": [1]} == takes.decode(takes.encode({"x": [1]}))


def test_the_signature_of_a_wrapped_handler_is_that_of_the_handler():
    import functools

    @functools.wraps(typed)
    def wrapper(*args, **kwargs): ...

    assert inspect.signature(typed) == inspect.signature(wrapper)
    assert ("a", "b", "c") == signature(wrapper).names


def test_the_schema_is_made_once():
    """A worker publishes those of all types when it starts, and again every minute."""

    def handler(n: int) -> None: ...

    signature = Signature(handler, "handler", Context)

    assert signature.schema is signature.schema
