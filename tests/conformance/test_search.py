"""Jobs by a filter: every field in every state, as a plain loop in Python would find them."""

from __future__ import annotations

import json
import random
from datetime import timedelta

import pytest
from msgspec.structs import replace

from tests.conformance import sample_jobs
from tests.conformance.helpers import (
    FAILED,
    HOUR,
    RETRIED,
    everything,
    finish,
    ids,
    on_postgres,
    put,
    put_many,
    settle_one,
    take,
)
from tests.conformance.sample_jobs import ODD, PAYLOADS, STATES, fill, meant, state_of, texts_at
from treadle.clock import SECOND
from treadle.filters import EVERYTHING, Compared, Filter, Prefix, parse
from treadle.ids import new_id
from treadle.outcome import COMPLETED, RELEASED
from treadle.redact import DEFAULT
from treadle.stores.shared import search, stats

STATUSES = [
    (),
    *((state,) for state in (*STATES, "pending")),
    ("queued", "failed"),
    ("scheduled", "retrying"),
    ("pending", "retrying"),
    ("pending", "processing", "completed", "failed", "cancelled"),
]


@pytest.fixture
def jobs(store, clock):
    fill(store, clock)
    return everything(store)


def fields(jobs, clock):
    """A filter for every field."""
    for field in ("types", "queues", "tenants", "subjects"):
        yield from (Filter(**{field: (name,)}) for name in (*ODD, "noop", "acme", "", "nobody's"))
        yield from (Filter(**{field: (Prefix(start),)}) for start in ("", "a", "a_", "100%", "send_", "Ü", "😀", "*"))
        yield Filter(**{field: ("acme", "it's", Prefix("100"))})
    yield from (Filter(workers=(name,)) for name in ("w1", "host-w2", Prefix("host-"), "", "w"))
    yield Filter(ids=tuple(ids(jobs)[::5]))
    yield Filter(ids=(new_id(),))
    for how in ("=", "<", "<=", ">", ">="):
        yield from (Filter(attempts=((Compared(how, n),),)) for n in (0, 1, 2))
    yield Filter(attempts=((Compared("=", 0), Compared(">", 1)), (Compared("<", 9),)))
    for text in ("timeout", "10.0.0.1", "", "%", "\\", "É", "'it'", "FAIL", "nowhere"):
        yield Filter(errors=((text,),))
    yield Filter(errors=(("nowhere", "no use"), ("fail",)))
    yield from moments(jobs, clock)


def moments(jobs, clock):
    created = sorted({job.created_at for job in jobs})
    for at in (created[0], created[2], created[-1], created[-1] + timedelta(seconds=1), 0.0, 120.0, 10_000.0):
        yield Filter(since=at)
        yield Filter(until=at)
    yield Filter(since=created[1], until=created[-2])


def by_payload():
    """Each value at each path of a payload, as JSON and as text; and values that no job has."""
    paths = ("n", "n.0", "n.-1", "n.1", "n.0.0", "n.5", "user", "user.id", "user.tags.0", "user.tags.-2", "user.x.y")
    odd = ("a\\b", "é", "%", "-1", "0", "٣", "4294967296", "n.4294967296", "n.٣", "it's", "$", "[0]")
    payloads = [json.loads(payload) for payload in PAYLOADS]
    for path in (*paths, *odd):
        there = {text for payload in payloads for text in texts_at(payload, path.split("."))}
        yield from (Filter(payload=((path, (text,)),)) for text in sorted({*there, "1", "42", "null", "", "nothing"}))
    yield Filter(payload=(("n", ("42", "true", "[1,2]")),))
    yield Filter(payload=(("n", ("42",)), ("user.id", ("7",))))


NAMES = {"w1": "host-w1", "w2": "host-w2"}


def check(store, jobs, wanted, clock, *, count=True):
    page = store.jobs(wanted, 200)
    expected = meant(jobs, wanted, clock(), NAMES)
    assert ids(page) == expected, f"{wanted!r}"
    assert (page.next, page.searched) == (None, None)
    if not count:
        return
    total = store.counts((), wanted, 1000)
    assert (sum(row["count"] for row in total.rows), total.exact) == (len(expected), True), f"{wanted!r}"


def test_a_filter_by_any_field_finds_jobs_in_every_state(store, jobs, clock):
    every = 1 if store.single_host else 4
    for n, field in enumerate(fields(jobs, clock)):
        for i, statuses in enumerate(STATUSES):
            if (n + i) % every == 0:  # on a server, a sample of the combinations
                check(store, jobs, field.replace(statuses=statuses), clock, count=n % 3 == 0)


def test_every_status_can_be_searched_alone(store, jobs, clock):
    for statuses in STATUSES:
        check(store, jobs, Filter(statuses=statuses), clock)


def test_values_in_a_payload_are_found(store, jobs, clock):
    for n, wanted in enumerate(by_payload()):
        check(store, jobs, wanted, clock, count=n % 5 == 0)
        if store.single_host:
            check(store, jobs, wanted.replace(statuses=STATUSES[n % len(STATUSES)]), clock)


def test_all_fields_of_a_filter_must_match(store, jobs, clock):
    chance = random.Random(1)
    some = [*fields(jobs, clock), *by_payload()]
    for _ in range(150 if store.single_host else 40):
        wanted = Filter(statuses=chance.choice(STATUSES))
        for one in chance.sample(some, 3):
            wanted = wanted.replace(
                **{name: getattr(one, name) for name in Filter.__struct_fields__ if getattr(one, name)}
            )
        check(store, jobs, wanted, clock)


def test_a_filter_as_text_means_the_same_as_its_fields(store, jobs, clock):
    wanted = parse('status:failed,retrying type:noop,send_* attempt:>=1 error:"no use",timeout since:1h')

    check(store, jobs, wanted, clock)
    assert len(store.jobs(wanted, 200)) > 2


def test_pages_follow_each_other_in_every_state(store, jobs, clock):
    for statuses in STATUSES:
        wanted = Filter(statuses=statuses)
        assert walk(store, wanted, 3)[0] == meant(jobs, wanted, clock(), NAMES)


def walk(store, wanted, limit):
    """Read all ids page by page. Return them, and how often the search ended before the page was full."""
    found, cursor, short = [], None, 0
    while True:
        page = store.jobs(wanted, limit, cursor)
        found += ids(page)
        if page.searched is not None:
            assert page.next is not None
            short += 1
        else:
            assert len(page) == limit or page.next is None
        if (cursor := page.next) is None:
            return found, short


# Searches without an index


@pytest.fixture
def short_search(monkeypatch):
    monkeypatch.setattr(search, "SEARCHED", 10)
    monkeypatch.setattr(search, "FIRST_LOOK", 4)


@pytest.mark.parametrize(
    "wanted",
    [
        Filter(types=("rare",)),
        Filter(types=("rare",), statuses=("pending",)),
        Filter(types=("rare",), statuses=("failed", "pending")),
        Filter(types=("rare",), statuses=("completed", "processing")),
        Filter(types=("rare",), tenants=("acme",)),
        Filter(types=("never",)),
        Filter(payload=(("n", ("1",)),)),
        Filter(statuses=("queued",)),
        EVERYTHING,
    ],
    ids=repr,
)
def test_a_search_that_ends_early_says_so_and_continues_without_gaps_or_repeats(store, clock, short_search, wanted):
    mixed(store, 60)
    expected = meant(everything(store), wanted, clock(), {})

    for limit in (1, 4, 50):
        found, _ = walk(store, wanted, limit)
        assert found == expected

    if wanted.types == ("never",):
        page = store.jobs(wanted, 50)
        assert (page.jobs, page.searched) == ([], 10)


def test_a_search_within_a_tenant_does_not_tell_how_many_others_share_its_subject(store, short_search):
    mine = put_many(store, 3, tenant="acme", subject="s")
    put_many(store, 30, tenant="umbrella", subject="s")
    wanted = Filter(tenants=("acme",), subjects=("s",))

    page = store.jobs(wanted.replace(types=("never",)), 50)
    assert (page.jobs, page.next, page.searched) == ([], None, None)
    page = store.jobs(wanted.replace(types=("noop",)), 50)
    assert ([job.id for job in page], page.next, page.searched) == ([job.id for job in reversed(mine)], None, None)
    assert store.counts((), wanted, 10) == ([{"count": 3}], True)


def mixed(store, n):
    """Jobs that wait, run and have ended, alternating."""
    for i in range(n):
        rare = {"type": "rare" if i % 9 == 0 else "noop", "tenant": "acme" if i % 2 else ""}
        put(store, **rare, payload=f'{{"n":{i % 7}}}')
    outcomes = (RELEASED, COMPLETED, FAILED, None)
    ended = [(claimed, outcomes[i % 4]) for i, claimed in enumerate(take(store))]
    store.settle([(claimed, outcome) for claimed, outcome in ended if outcome])


def test_a_count_stops_at_its_limit(store, short_search):
    put_many(store, 3, "rare")
    put_many(store, 10)
    wanted = Filter(types=("rare",), tenants=("",))

    assert store.counts((), wanted, 10) == ([], False)
    assert store.counts((), wanted, 12) == ([{"count": 2}], False)
    assert store.counts((), wanted, 13) == ([{"count": 3}], True)
    assert store.counts((), wanted, None) == ([{"count": 3}], True)


# Rows that were broken by hand


@pytest.mark.by_hand
def test_a_payload_broken_by_hand_hides_no_other_job(store, by_hand):
    broken = put_many(store, 8)
    texts = ["[1]", '"x"', "1", "null", '{"n":"\\u0000"}', '{"n":"\\ud800"}', '{"n":"a\\\\u0000","m":1}', "{no json"]
    for job, text in zip(broken, texts[: 7 if on_postgres(store) else 8], strict=False):
        by_hand("UPDATE treadle_jobs SET payload = ? WHERE id = ?", text, job.id)
    good = put(store, payload='{"n":1}')
    pair = put(store, payload='{"n":"\\ud83d\\ude00"}')

    assert [good.id] == ids(store.jobs(Filter(payload=(("n", ("1",)),)), 10))
    assert [pair.id] == ids(store.jobs(Filter(payload=(("n", ("😀",)),)), 10))
    assert [broken[6].id] == ids(store.jobs(Filter(payload=(("m", ("1",)),)), 10))
    assert [broken[0].id] == ids(store.jobs(Filter(payload=(("0", ("1",)),)), 10))


# Counts


def expected_counts(jobs, by, now):
    rows = {}
    for job in jobs:
        values = {"state": state_of(job, now), "status": job.status.value}
        key = tuple(values.get(name) or getattr(job, name) for name in by)
        rows[key] = rows.get(key, 0) + 1
    return [{**dict(zip(by, key, strict=True)), "count": n} for key, n in sorted(rows.items())]


@pytest.mark.parametrize(
    "wanted",
    [
        EVERYTHING,
        Filter(types=("noop", Prefix("a"))),
        Filter(statuses=("retrying", "failed")),
        Filter(subjects=("call-7",)),
    ],
    ids=repr,
)
def test_counts_equal_those_of_a_loop_in_python(store, jobs, clock, wanted):
    those = [job for job in jobs if job.id in meant(jobs, wanted, clock(), NAMES)]
    for by in (("status",), ("state",), ("type", "state"), ("tenant", "status"), ("queue",), ("subject", "type")):
        for most in (None, 1000):
            counted = store.counts(by, wanted, most)
            assert (counted.rows, counted.exact) == (expected_counts(those, by, clock()), True), by


def test_queued_and_scheduled_jobs_are_counted_separately_only_on_request(store, clock):
    put(store), put(store, delay=60 * SECOND)

    assert store.counts(("status",)).rows == [{"status": "pending", "count": 2}]
    assert store.counts(("state",)).rows == [{"state": "queued", "count": 1}, {"state": "scheduled", "count": 1}]
    assert store.counts((), Filter(statuses=("queued",))).rows == [{"count": 1}]
    clock.advance(60)
    assert store.counts(("state",)).rows == [{"state": "queued", "count": 2}]


def test_a_count_of_scheduled_jobs_that_stops_early_is_not_exact(store, monkeypatch):
    monkeypatch.setattr(stats, "MOST_COUNTED", 5)
    put_many(store, 4, "few", delay=HOUR)
    assert store.counts(("state",)).exact
    put_many(store, 5, "many", delay=HOUR)

    assert not store.counts(("state",)).exact
    assert store.counts(("state",), Filter(types=("few",))).exact
    assert store.counts(("status",)) == ([{"status": "pending", "count": 9}], True)


def test_a_count_of_retries_in_several_queues_that_stops_early_is_not_exact(store, monkeypatch):
    """The count looks at the newest retries, whatever their queue and type."""
    monkeypatch.setattr(stats, "MOST_COUNTED", 5)
    for type in ("a", "b"):
        put_many(store, 3, type)
        for claimed in take(store, types={type: None}):
            settle_one(store, claimed, sample_jobs.LATER)

    assert not store.counts(("state",)).exact


def test_a_count_over_too_many_priorities_is_not_exact(store, monkeypatch):
    monkeypatch.setattr(stats, "MOST_LEVELS", 3)
    for priority in range(3):
        put(store, priority=priority, delay=HOUR)
    assert store.counts(("state",)).exact
    put(store, priority=3, delay=HOUR)

    assert not store.counts(("state",)).exact


def test_a_due_job_that_has_failed_before_counts_as_queued(store, clock):
    put(store)
    settle_one(store, take(store)[0], RETRIED)

    assert store.counts(("state",)).rows == [{"state": "queued", "count": 1}]
    assert [] == store.jobs(Filter(statuses=("retrying",)), 10).jobs
    assert 1 == len(store.jobs(Filter(statuses=("queued",)), 10))


# Searches by callers who do not see secrets

HIDING = [
    "login failed: password=hunter2, user=ada",
    "ERROR: Password: 'hun ter2' for ada",
    '{"user": "ada", "accessToken": {"value": "hunter2"}, "n": 1}',
    "cannot connect to postgres://ada:hunter2@db/x: refused",
    "401 for ada with Authorization: Token hunter2 x=1",
    "myCardNumber=4111 1111 failed",
    "Invalid API key: hunter2 (ada)",
]


def visible_to(error):
    return DEFAULT.text(error).lower()


@pytest.mark.parametrize("outcome", [FAILED, RETRIED], ids=["failed", "retrying"])
def test_no_part_of_a_hidden_value_can_be_found(store, outcome):
    """Each part of an error that is not shown: from every position, in several lengths, in other letters."""
    for error in HIDING:
        job = finish(store, replace(outcome, error=error, delay=HOUR))
        lengths = (*range(1, 9), 15, 25)
        parts = {error[at : at + n].upper() for n in lengths for at in range(len(error) - n + 1)}
        hidden = [
            part for part in sorted(parts) if part.lower() not in visible_to(error) and DEFAULT.searchable(part) == part
        ]
        assert len(hidden) > 10
        for at in range(0, len(hidden), 50):
            some = Filter(errors=(tuple(hidden[at : at + 50]),), markers=DEFAULT.markers)
            assert not store.jobs(some, 10).jobs, error
            assert [] == store.counts((), some, 1000).rows
        assert ids(store.jobs(some.replace(markers=()), 10)) == [job.id]
        store.delete(job.id)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        *((error, visible_to(error).partition("•")[0]) for error in HIDING[:3]),
        ("login failed: password=hunter2", "FAILED"),
        ("login failed: password=hunter2", "password"),
        ("the token has expired for user ada", "ADA"),
        ("the token has expired for user ada", "token has"),
        ("discard failed: disk full", "discard failed: disk full"),
        ("GET https://api.example.com/x: timed out", "timed out"),
        ("GET https://api.example.com/x for a@b.c failed", "get https://api.example.com/x for a@b.c failed"),
        ("max_tokens", "max_tokens"),
        ("", ""),
    ],
)
def test_what_is_shown_of_an_error_can_be_found(store, error, text):
    job = finish(store, replace(FAILED, error=error))
    assert DEFAULT.searchable(text) == text
    assert ids(store.jobs(Filter(errors=((text,),), markers=DEFAULT.markers), 10)) == [job.id]
