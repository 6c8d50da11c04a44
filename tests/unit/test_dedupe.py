"""Dedupe keys: two enqueues with the same key are one job."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.clock import SECOND
from treadle.dedupe import (
    LIMIT,
    PLAIN,
    Dedupe,
    KeyState,
    Place,
    Rule,
    due_at,
    key_for,
    make_dedupe_key,
    read_rule,
    rule_text,
)
from treadle.errors import BadOption

json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
payloads = st.dictionaries(st.text(), json, max_size=4)


def test_a_key_is_type_tenant_and_sorted_json():
    assert 'sync::acme::{"a":[1,2],"b":{"c":"é"}}' == make_dedupe_key("sync", "acme", {"b": {"c": "é"}, "a": [1, 2]})


@pytest.mark.parametrize("tenant", [None, ""])
def test_without_a_tenant_a_key_is_global(tenant):
    assert "sync::global::{}" == make_dedupe_key("sync", tenant, {})


@given(payloads)
def test_the_order_of_a_payload_does_not_matter(payload):
    turned = dict(reversed(payload.items()))

    assert make_dedupe_key("t", None, payload) == make_dedupe_key("t", None, turned)


@given(payloads, payloads)
def test_different_payloads_have_different_keys(one, other):
    same = make_dedupe_key("t", None, one) == make_dedupe_key("t", None, other)

    assert (repr_of(one) == repr_of(other)) == same


def repr_of(value):
    """Equal for equal JSON: in Python, True == 1."""
    if isinstance(value, dict):
        return {key: repr_of(inner) for key, inner in value.items()}
    return [repr_of(inner) for inner in value] if isinstance(value, list) else (type(value), value)


@pytest.mark.parametrize("dedupe", [None, False])
def test_there_is_no_key_by_default(dedupe):
    assert None is key_for(dedupe, "t", "", {})


def test_true_makes_a_key_from_type_tenant_and_payload():
    assert make_dedupe_key("t", "acme", {"a": 1}) == key_for(True, "t", "acme", {"a": 1})


def test_a_long_payload_is_hashed():
    one, other = (key_for(True, "t", "", {"a": letter * 1000}) for letter in "xy")

    assert one.startswith("sha256:")
    assert len(one.encode()) <= LIMIT
    assert one != other


def test_a_text_is_the_key():
    assert "nightly" == key_for("nightly", "t", "acme", {"a": 1})


def test_a_function_makes_the_key_from_the_arguments():
    assert "video-7" == key_for(lambda video, quality: f"video-{video}", "t", "", {"video": 7, "quality": "hd"})


@pytest.mark.parametrize("key", ["", "a\0b", 7, None, b"k", "\ud800", "x" * 513, "é" * 257], ids=repr)
def test_an_invalid_key_is_refused(key):
    with pytest.raises(BadOption, match="dedupe="):
        key_for(lambda: key, "t", "", {})


def test_the_longest_key_is_accepted():
    assert "x" * LIMIT == key_for("x" * LIMIT, "t", "", {})


# Modes


@pytest.mark.parametrize(
    "options",
    [
        {"key": ""},
        {"key": None},
        {"key": False},
        {"key": 3},
        {"key": "x" * (LIMIT + 1)},
        {"key": "k", "mode": "keep"},
        {"key": "k", "until": "paid"},
        {"key": "k", "mode": "throttle"},
        {"key": "k", "mode": "throttle", "period": 0},
        {"key": "k", "mode": "throttle", "period": "1h"},
        {"key": "k", "mode": "throttle", "period": True},
        {"key": "k", "mode": "throttle", "period": float("nan")},
        {"key": "k", "mode": "throttle", "period": 60, "until": "started"},
        {"key": "k", "mode": "debounce"},
        {"key": "k", "mode": "debounce", "wait": 5},
        {"key": "k", "mode": "debounce", "wait": 5, "at_most": 4},
        {"key": "k", "mode": "debounce", "wait": float("inf"), "at_most": float("inf")},
        {"key": "k", "mode": "replace", "wait": 5},
        {"key": "k", "mode": "replace", "period": 5},
        {"key": "k", "at_most": 5},
    ],
    ids=str,
)
def test_a_dedupe_that_makes_no_sense_is_refused_when_it_is_made(options):
    with pytest.raises(BadOption):
        Dedupe(**options)


def test_the_error_has_the_value_and_the_way_out():
    with pytest.raises(BadOption, match=r"^wait=5: it belongs to mode='debounce'; leave it out, or choose that mode$"):
        Dedupe("k", wait=5)
    with pytest.raises(
        BadOption, match=r"^at_most=None: the most seconds from the first call to the start: more than 0"
    ):
        Dedupe("k", mode="debounce", wait=5)


def test_a_dedupe_is_frozen():
    with pytest.raises(AttributeError):
        Dedupe("k").mode = "replace"  # type: ignore[misc]


@pytest.mark.parametrize("key", [True, "k", lambda a: f"a-{a}"])
def test_a_dedupe_has_the_key_that_its_key_alone_has(key):
    assert key_for(key, "t", "", {"a": 1}) == key_for(Dedupe(key, mode="replace"), "t", "", {"a": 1})


@pytest.mark.parametrize(
    ("dedupe", "rule"),
    [
        ("k", PLAIN),
        (Dedupe("k"), PLAIN),
        (Dedupe("k", mode="reject", until="started"), Rule(mode="reject", until="started")),
        (Dedupe("k", mode="debounce", wait=0.5, at_most=60), Rule(mode="debounce", wait=500_000, at_most=60 * SECOND)),
        (Dedupe("k", mode="throttle", period=1), Rule(mode="throttle", period=SECOND)),
    ],
)
def test_a_rule_is_read_as_it_was_stored(dedupe, rule):
    assert rule == read_rule(rule_text(dedupe))
    assert (rule_text(dedupe) is None) == (rule == PLAIN)


@pytest.mark.parametrize("text", ["nonsense", "{}", '{"mode": "keep"}', "\ud800"])
def test_a_rule_that_was_broken_by_hand_is_the_plain_one(text):
    assert PLAIN == read_rule(text)


@given(
    wait=st.integers(1, 100),
    more=st.integers(0, 100),
    calls=st.lists(st.integers(0, 120), min_size=1, max_size=20),
)
def test_a_debounce_is_due_after_the_last_call_and_never_after_its_ceiling(wait, more, calls):
    rule, now, since = Rule(mode="debounce", wait=wait, at_most=wait + more), 1000, None
    for pause in calls:
        now += pause
        due = due_at(rule, now, since)
        since = now if since is None else since
        assert due == max(now, min(now + wait, since + wait + more))


STATE = KeyState(holder="h", until_started=0, since=None, expires_at=None, successor=None, place=Place.FRESH)


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ({}, False),
        ({"place": Place.WAITING}, False),
        ({"place": Place.RUNNING}, False),
        ({"place": Place.NOWHERE}, False),
        ({"place": Place.ENDED}, True),
        ({"place": Place.GONE}, True),
        ({"until_started": 1}, False),
        ({"until_started": 1, "place": Place.WAITING}, True),
        ({"until_started": 1, "place": Place.RUNNING}, True),
        ({"expires_at": 101}, False),
        ({"expires_at": 101, "place": Place.ENDED}, False),
        ({"expires_at": 100}, True),
        ({"expires_at": 100, "place": Place.RUNNING}, True),
        ({"expires_at": 101, "place": Place.GONE}, True),
        ({"successor": "s", "place": Place.RUNNING, "expires_at": 99}, False),
        ({"successor": "s", "place": Place.GONE}, False),
    ],
    ids=str,
)
def test_when_a_key_is_free(changes, free):
    assert free == msgspec.structs.replace(STATE, **changes).is_free(100)
