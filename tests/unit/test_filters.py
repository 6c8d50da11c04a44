"""The filter language: its meaning, its errors, and that the text of a filter gives the same filter."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import BadFilter
from treadle.filters import (
    DEEPEST,
    EVERYTHING,
    LONGEST,
    MOST_VALUES,
    STATUSES,
    Compared,
    Filter,
    Prefix,
    matches,
    parse,
    to_filter,
)
from treadle.ids import new_id

ID, OTHER = "01970000-0000-7000-8000-000000000000", "01970000-0000-7000-8000-000000000001"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", {}),
        ("  \t ", {}),
        ("status:failed", {"statuses": ("failed",)}),
        ("status:failed,retrying", {"statuses": ("failed", "retrying")}),
        ("type:send_mail", {"types": ("send_mail",)}),
        ("type:send_*", {"types": (Prefix("send_"),)}),
        ("type:*", {"types": (Prefix(""),)}),
        ('type:"send_*"', {"types": ("send_*",)}),
        ('type:"send *"*', {"types": (Prefix("send *"),)}),
        ("queue:mail,slow*", {"queues": ("mail", Prefix("slow"))}),
        ('tenant:""', {"tenants": ("",)}),
        ("tenant:a:b", {"tenants": ("a:b",)}),
        ('subject:"call 7, please"', {"subjects": ("call 7, please",)}),
        (r'subject:"say \"hi\" \\ twice"', {"subjects": (r'say "hi" \ twice',)}),
        ("worker:host-1", {"workers": ("host-1",)}),
        (f"id:{ID},{OTHER}", {"ids": (ID, OTHER)}),
        (ID, {"ids": (ID,)}),
        (f"{ID} {OTHER}", {"ids": (ID, OTHER)}),
        ("attempt:3", {"attempts": ((Compared("=", 3),),)}),
        ("attempt:>3,=1", {"attempts": ((Compared(">", 3), Compared("=", 1)),)}),
        ("attempt:>=2 attempt:<5", {"attempts": ((Compared(">=", 2),), (Compared("<", 5),))}),
        ("error:Timeout,refused", {"errors": (("Timeout", "refused"),)}),
        ('error:"connection refused" error:10.0.0.1', {"errors": (("connection refused",), ("10.0.0.1",))}),
        ("error:a*b", {"errors": (("a*b",),)}),
        ("payload.user.id:42,43", {"payload": (("user.id", ("42", "43")),)}),
        ("payload.a:1 payload.a:2", {"payload": (("a", ("1",)), ("a", ("2",)))}),
        ("since:1h", {"since": 3600.0}),
        ("since:90", {"since": 90.0}),
        ("until:1h30m", {"until": 5400.0}),
        ("since:2026-11-01", {"since": datetime(2026, 11, 1, tzinfo=UTC)}),
        ("until:2026-11-01T08:30+01:00", {"until": datetime(2026, 11, 1, 7, 30, tzinfo=UTC)}),
        ('since:"2026-11-01 08:30"', {"since": datetime(2026, 11, 1, 8, 30, tzinfo=UTC)}),
        ("status:failed type:a  tenant:b", {"statuses": ("failed",), "types": ("a",), "tenants": ("b",)}),
    ],
)  # fmt: skip
def test_a_text_means_a_filter(text: str, meant: dict[str, Any]) -> None:
    assert parse(text) == Filter(**meant)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("failed", "cannot read 'failed': write key:value, for example type:failed; keys are status, type, queue,"),
        ("staus:failed", "cannot read 'staus:failed': 'staus' is not one of status, type, .* did you mean status\\?"),
        (":x", "'' is not one of status"),
        ("status:faild", "'faild' is not one of pending, .*; did you mean failed\\?"),
        ("status:", 'a value is missing; write the empty one as ""'),
        ("type:a,,b", "a value is missing"),
        ("type:a,", "a value is missing"),
        ('type:"a"b', "put a comma between two values"),
        ('type:a"b"', "put a comma between two values"),
        ("type:a*b", "a \\* can only be at the end: a\\*; quote a star"),
        ("type:a**", "a \\* can only be at the end"),
        ("type:a type:b", "type is given twice; use a comma"),
        ("since:1h since:2h", "since is given twice"),
        ('error:"connection refused', 'a quote is not closed; write error:"connection refused"'),
        ('status:failed "open', "a quote is not closed"),
        ("id:7", "write a job id, such as 01970000-"),
        ("id:019*", "write a job id, such as 01970000-"),
        ("attempt:x", "write attempt:3, attempt:>3 or attempt:<=3"),
        ("attempt:=>3", "write attempt:3"),
        ("attempt:1234567890", "write attempt:3"),
        ("payload.:1", "write payload.user.id:42"),
        ("payload.a..b:1", "write payload.user.id:42"),
        (f"payload.{'.a' * DEEPEST}a:1", f"at most {DEEPEST} names"),
        ("payload.1.2.3.4:1", "at most 3 of them numbers"),
        ("payload:1", "'payload' is not one of"),
        ("since:yesterday", "write since:1h, since:7d, or a time"),
        ("since:1h,2h", "write since:1h"),
        ("until:2026-13-01", "write since:1h"),
        ("since:99999999999", "write since:1h"),
        ("type:a\0b", "remove the NUL character"),
        ("error:\0", "remove the NUL"),
        ("payload.a:\0", "remove the NUL"),
        ("type:\udcff", "is not valid UTF-8"),
        ("x" * (LONGEST + 1), f"a filter has at most {LONGEST:,} characters"),
        (f"type:{','.join(['a'] * (MOST_VALUES + 1))}", f"at most {MOST_VALUES} values"),
    ],
)  # fmt: skip
def test_an_unreadable_filter_says_what_is_possible(text: str, message: str) -> None:
    with pytest.raises(BadFilter, match=message):
        parse(text)


def test_an_error_shows_the_term_and_not_the_whole_filter() -> None:
    with pytest.raises(BadFilter) as raised:
        parse("status:failed tpye:a since:1h")

    assert raised.value.term == "tpye:a"
    assert str(raised.value).startswith("cannot read 'tpye:a': ")


def test_a_filter_may_be_text_a_filter_or_none() -> None:
    assert to_filter("status:failed") == to_filter(Filter(statuses=("failed",)))
    assert to_filter(None) == to_filter("") == EVERYTHING


def test_terms_are_readable() -> None:
    found = parse('since:90m attempt:>=3 payload.a.b:"x y" error:boom type:send_* status:failed,queued').terms()

    assert found == [
        ("status", "failed,queued"),
        ("type", "send_*"),
        ("attempt", ">=3"),
        ("error", "boom"),
        ("payload.a.b", '"x y"'),
        ("since", "90m"),
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("since:3600", "since:1h"),
        ("since:0", "since:0s"),
        ("since:0.0000001", "since:0s"),
        ("since:0.000001", "since:0.000001s"),
        ("since:1.5", "since:1.5s"),
        ("since:2w", "since:14d"),
        ("until:2026-11-01T08:30+01:00", "until:2026-11-01T07:30:00Z"),
        ("attempt:=3", "attempt:3"),
        ('type:"plain"', "type:plain"),
    ],
)
def test_equal_filters_have_one_text(text: str, shown: str) -> None:
    assert str(parse(text)) == shown
    assert repr(parse(text)) == f"Filter({shown!r})"


def test_matching_a_name() -> None:
    assert matches("a", ())
    assert matches("abc", ("x", Prefix("ab")))
    assert matches("", ("",))
    assert not matches("abc", ("ab",))
    assert not matches("a", (Prefix("ab"),))


# Every possible filter

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)
names = texts | st.builds(Prefix, texts)
plain = st.characters(exclude_characters='\0.:"', exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"])
parts = st.text(plain, min_size=1, max_size=4)
numbers = st.builds(Compared, st.sampled_from(["=", "<", "<=", ">", ">="]), st.integers(0, 999_999_999))
moments = (
    st.none()
    | st.integers(0, 10**10 - 1).map(float)
    | st.floats(0, 10**9).map(lambda at: round(at, 6))
    | st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
)


def some(values: Any, least: int = 0) -> Any:
    return st.lists(values, min_size=least, max_size=3).map(tuple)


paths = st.lists(parts, min_size=1, max_size=3).map(".".join)
every_filter = st.builds(
    Filter,
    statuses=some(st.sampled_from(STATUSES)),
    types=some(names),
    queues=some(names),
    tenants=some(names),
    subjects=some(names),
    workers=some(names),
    ids=some(st.sampled_from([ID, OTHER, new_id()])),
    attempts=some(some(numbers, 1)),
    errors=some(some(texts, 1)),
    payload=some(st.tuples(paths, some(texts, 1))),
    since=moments,
    until=moments,
)


@given(every_filter)
def test_the_text_of_a_filter_is_read_as_the_same_filter(wanted: Filter) -> None:
    assert parse(str(wanted)) == wanted


@given(texts, texts)
def test_any_text_is_either_read_or_refused_with_a_message(key: str, value: str) -> None:
    for text in (key, f"{key}:{value}", f"type:{value}", f"payload.{key}:{value}", f"since:{value}"):
        with suppress(BadFilter):
            found = parse(text)
            assert parse(str(found)) == found


@given(st.lists(texts, min_size=2, max_size=6))
def test_a_prefix_matches_all_names_that_start_with_it(words: list[str]) -> None:
    for one, other in pairwise(words):
        assert matches(one + other, (Prefix(one),))
