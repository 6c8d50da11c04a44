"""A stored value is read back unchanged, or it is refused before it is stored."""

from __future__ import annotations

import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import codec
from treadle.errors import BadPayload, NotJSON, PayloadTooDeep, PayloadTooLarge

storable = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
texts = st.text(storable)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=15,
)


@given(json)
def test_json_is_read_back_unchanged(value):
    text = codec.to_json_exact(value, "noop", "x")

    assert value == codec.decode(text)


REFUSED = {
    "NaN": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "NaN inside": {"a": [1.0, math.nan]},
    "NUL": "a\0b",
    "NUL in a key": {"a\0": 1},
    "NUL inside": [[{"k": "\0"}]],
    "lone surrogate": "\ud800",
    "lone surrogate in a key": {"\udfff": 1},
    "bytes": b"abc",
    "set": {1, 2},
    "tuple": (1, 2),
    "dict with int keys": {1: "a"},
    "10**5000": 10**5000,
    "datetime": datetime.datetime(2026, 1, 1),
    "object": object(),
    "function": len,
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_a_value_that_would_not_round_trip_is_refused_and_shown(value):
    with pytest.raises(NotJSON, match=r"^x=") as error:
        codec.to_json_exact(value, "noop", "x")

    assert value is error.value.value


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**64), 10**400], ids=str)
def test_a_number_of_any_size_is_read_back_unchanged(number):
    assert number == codec.decode(codec.to_json_exact(number, "noop", "x"))


@pytest.mark.parametrize("text", ["\\u0000", "a\\0", "\x01", "\u2028", "\x7f", "\U0001f986"])
def test_text_that_only_looks_dangerous_is_kept(text):
    assert text == codec.decode(codec.to_json_exact(text, "noop", "x"))


def test_exactly_the_limit_is_accepted_and_one_byte_more_is_not():
    room = codec.MAX_BYTES - 2  # the quotes

    assert codec.MAX_BYTES == len(codec.to_json("x" * room, "noop", "x"))
    with pytest.raises(PayloadTooLarge, match=r"is 1,048,577 bytes and the limit is 1,048,576") as error:
        codec.to_json("x" * (room + 1), "noop", "x")
    assert codec.MAX_BYTES + 1 == error.value.size


def test_the_limit_counts_bytes_and_not_characters():
    with pytest.raises(PayloadTooLarge):
        codec.to_json("é" * (codec.MAX_BYTES // 2), "noop", "x")


def nested(depth, kind):
    value = 0
    for _ in range(depth):
        value = [value] if kind is list else {"k": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_the_deepest_nesting_is_accepted_and_one_more_level_is_not(kind):
    deepest = nested(codec.MAX_DEPTH, kind)

    assert deepest == codec.decode(codec.to_json(deepest, "noop", "x"))
    with pytest.raises(PayloadTooDeep, match="nested more than 64 levels deep"):
        codec.to_json(nested(codec.MAX_DEPTH + 1, kind), "noop", "x")


@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize("depth", [300, 480, 700, 900, 950, 990, 1500, 10_000, 100_000])
def test_any_deeper_nesting_is_a_typed_error(kind, depth):
    with pytest.raises(PayloadTooDeep):
        codec.to_json(nested(depth, kind), "noop", "x")


def test_a_cycle_is_too_deep():
    cycle = []
    cycle.append(cycle)

    with pytest.raises(PayloadTooDeep):
        codec.to_json(cycle, "noop", "x")


def test_many_brackets_side_by_side_are_not_deep():
    wide = [[] for _ in range(10_000)]

    assert wide == codec.decode(codec.to_json(wide, "noop", "x"))


def test_brackets_in_text_are_not_deep():
    assert codec.to_json("[" * 1000, "noop", "x")


@pytest.mark.parametrize("value", [10**5000, b"\xff", "a\0", "\ud800"], ids=["10**5000", "bytes", "NUL", "surrogate"])
def test_every_refusal_is_a_bad_payload_with_the_fix(value):
    with pytest.raises(BadPayload, match=r": .*(pass|remove|convert)"):
        codec.to_json_exact(value, "noop", "x")


def test_a_result_may_be_none():
    assert None is codec.result_to_json(None, "noop")
    assert '{"a":[1,2]}' == codec.result_to_json({"a": (1, 2)}, "noop")


def test_a_result_that_is_not_json_is_refused_and_named():
    with pytest.raises(NotJSON, match="the result="):
        codec.result_to_json(object(), "noop")


@given(st.text(st.characters()), st.integers(1, 50))
def test_clipped_text_can_always_be_stored(text, limit):
    clipped = codec.clip(text, limit)

    assert len(clipped) <= limit + 1
    assert "\0" not in clipped
    assert clipped == codec.decode(codec.encode(clipped))


def test_the_end_of_a_long_text_is_kept():
    assert "…world" == codec.clip("hello world", 5)
    assert "hello" == codec.clip("hello", 5)
    assert None is codec.clip(None)


def test_a_result_that_is_too_large_is_called_a_result():
    with pytest.raises(PayloadTooLarge, match=r"^the result of 'noop' is 1,048,578 bytes and the limit is 1,048,576;"):
        codec.result_to_json("x" * (1 << 20), "noop")


def test_a_result_that_is_too_deep_is_called_a_result():
    with pytest.raises(PayloadTooDeep, match=r"^the result of 'noop' is nested more than 64 levels deep"):
        codec.result_to_json(codec.decode("[" * 65 + "]" * 65), "noop")
