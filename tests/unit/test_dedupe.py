"""Dedupe keys: two enqueues with the same key are one job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.dedupe import LIMIT, key_for, make_dedupe_key
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
