"""`SELECT treadle.enqueue(…)`: a job from SQL is the same as one from `td.enqueue`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import errors

from tests.conformance.helpers import HOUR, RETRIED, check_consistency, settle_one, take
from treadle import Dedupe, Treadle

LATER = msgspec.structs.replace(RETRIED, delay=HOUR)
SOON = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@pytest.fixture
def td(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Treadle]:
    app = Treadle(postgres_url)

    @app.job(queue="mail", priority=7, max_attempts=2, fair="tenant")
    def known(a: int = 0) -> None: ...

    app.store.open()
    app.store.publish([known.job_type.policy])
    yield app
    if request.node.get_closest_marker("by_hand") is None:
        check_consistency(app.store)
    app.close()


@pytest.fixture
def sql(td: Treadle, postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def enqueue(sql: psycopg.Connection[Any], type: Any, payload: Any = "{}", **options: Any) -> str:
    named = "".join(f", {name} => %({name})s" for name in options)
    statement = f"SELECT treadle.enqueue(%(type)s, %(payload)s::jsonb{named})::text"
    row = sql.execute(statement, {"type": type, "payload": payload, **options}).fetchone()
    assert row is not None
    return str(row[0])


def rows(sql: psycopg.Connection[Any], id: str) -> list[dict[str, Any]]:
    """What the tables have of a job, but for the time of its enqueue."""
    found = []
    for table in ("jobs", "ready", "dedupe"):
        cursor = sql.execute(f"SELECT * FROM treadle.{table} WHERE id = %s", [id])
        names = [column.name for column in cursor.description or ()]
        found += [dict(zip(names, row, strict=True)) for row in cursor]
    created = found[0]["created_at"]
    for row in found:
        row.pop("id")
        for name in ("created_at", "updated_at", "run_at", "start_by"):
            if row.get(name) is not None and abs(row[name] - created) < 10**12:
                row[name] -= created
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"type": "unheard_of"},
        {"payload": {"a": 1, "b": [True, None, "ü", 1.5, {"c": {}}], "big": 2**63 + 1}, "type": "unheard_of"},
        {"queue": "slow", "priority": -5, "max_attempts": 9, "tenant": "acme", "subject": "call-7"},
        {"delay": 60},
        {"delay": 0.25, "start_within": 300},
        {"run_at": SOON, "start_within": 1},
        {"dedupe": "call-7", "tenant": "acme"},
    ],
)
def test_it_writes_the_same_rows_as_the_library(td: Treadle, sql: psycopg.Connection[Any], options: Any) -> None:
    given = {"type": "known", "payload": {}, **options}
    type, payload = given.pop("type"), given.pop("payload")
    ours = td.enqueue(type, payload, **given)
    expected = rows(sql, ours.id)
    td.delete(ours.id)
    theirs = enqueue(sql, type, psycopg.types.json.Json(payload), **given)
    assert rows(sql, theirs) == expected
    assert td.get(theirs).payload == payload
    assert uuid.UUID(theirs).version == 7
    assert uuid.UUID(theirs).variant == uuid.RFC_4122


@pytest.mark.parametrize(
    "options",
    [
        {"type": ""},
        {"type": None},
        {"type": "x" * 201},
        {"queue": ""},
        {"tenant": "x" * 201},
        {"subject": "x" * 201},
        {"payload": "[]"},
        {"payload": None},
        {"payload": '{"a": 1e400}'},
        {"payload": '{"a": ' + "[" * 64 + "]" * 64 + "}"},
        {"payload": '{"a": "' + "x" * (1 << 20) + '"}'},
        {"priority": 32_768},
        {"priority": -(2**31)},
        {"max_attempts": 0},
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 1, "run_at": SOON},
        {"run_at": "infinity"},
        {"run_at": "0001-01-01 BC"},
        {"dedupe": ""},
        {"dedupe": "ü" * 257},
        {"start_within": 0},
    ],
)
def test_a_value_that_is_not_valid_is_shown_and_nothing_is_stored(
    td: Treadle, sql: psycopg.Connection[Any], options: Any
) -> None:
    with pytest.raises(errors.InvalidParameterValue, match=f"^treadle.enqueue: {next(iter(options))} = ") as caught:
        enqueue(sql, **{"type": "noop", **options})
    assert len(str(caught.value)) < 900
    assert td.counts() == []
    assert sql.execute("SELECT count(*) FROM treadle.dedupe").fetchone() == (0,)


def test_the_deepest_payload_is_stored(td: Treadle, sql: psycopg.Connection[Any]) -> None:
    deepest = '{"a": ' + "[" * 63 + "]" * 63 + "}"
    assert td.get(enqueue(sql, "noop", deepest)).payload


def test_a_rollback_leaves_nothing(td: Treadle, sql: psycopg.Connection[Any]) -> None:
    with sql.transaction(force_rollback=True):
        enqueue(sql, "noop", dedupe="k")
    assert td.counts() == []


RULES = [
    "k",
    Dedupe("k", until="started"),
    Dedupe("k", mode="throttle", period=3600),
    Dedupe("k", mode="replace"),
    Dedupe("k", mode="reject"),
]
ORPHANED = ("deleted before its successor", "deleted before a successor whose rule is broken")
PLACES = ("waiting", "retrying", "running", "ended", "deleted", *ORPHANED)


def hold(td: Treadle, tenant: str, rule: Any, place: str) -> str:
    """Let a job hold a key, and bring it to this place. Return its id, or that of the successor."""
    job = td.enqueue("noop", {}, dedupe=rule, tenant=tenant, queue=tenant)
    if place in ("retrying", "running", *ORPHANED):
        [lease] = take(td.store, lease_for=10**9, queues=(tenant,))
        assert lease.id == job.id
        if place == "retrying":
            assert settle_one(td.store, lease, LATER)
    elif place != "waiting":
        td.cancel(job.id)
    if place == "deleted":
        td.delete(job.id)
    if place in ORPHANED:
        successor = td.enqueue("noop", {}, dedupe=Dedupe("k", mode="replace"), tenant=tenant)
        with psycopg.connect(td.store.url) as by_hand:
            for table in ("jobs", "leases"):
                by_hand.execute(f"DELETE FROM treadle.{table} WHERE id = %s", [job.id])
            if place == ORPHANED[1]:
                by_hand.execute("UPDATE treadle.jobs SET dedupe_rule = 'replace' WHERE id = %s", [successor.id])
        return successor.id
    return job.id


@pytest.mark.by_hand
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_key_is_held_as_the_library_says(td: Treadle, sql: psycopg.Connection[Any], rule: Any, place: str) -> None:
    ours, theirs = (hold(td, tenant, rule, place) for tenant in ("ours", "theirs"))
    is_held = td.enqueue("noop", {}, dedupe="k", tenant="ours").id == ours
    given = enqueue(sql, "noop", dedupe="k", tenant="theirs")
    assert (given == theirs) is is_held
    ours_key, theirs_key = (
        sql.execute(
            "SELECT id = %s, until_started, since IS NULL, expires_at IS NULL, successor FROM treadle.dedupe"
            " WHERE tenant = %s",
            [holder, tenant],
        ).fetchall()
        for tenant, holder in (("ours", ours), ("theirs", theirs))
    )
    assert theirs_key == ours_key


def test_callers_at_once_store_one_job(td: Treadle, postgres_url: str) -> None:
    def call(_: int) -> str:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            return enqueue(connection, "noop", dedupe="k")

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(call, range(40)))) == 1
    assert td.counts() == [{"status": "pending", "count": 1}]


def test_a_trigger_enqueues_with_its_row(td: Treadle, sql: psycopg.Connection[Any]) -> None:
    sql.execute("""
        CREATE TABLE orders (id integer PRIMARY KEY);
        CREATE FUNCTION send_receipt() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM treadle.enqueue('receipt', jsonb_build_object('order', NEW.id), subject => 'order-' || NEW.id);
            RETURN NEW;
        END $$;
        CREATE TRIGGER receipt AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION send_receipt();
    """)
    seen: list[int] = []

    @td.job
    def receipt(order: int) -> None:
        seen.append(order)

    sql.execute("INSERT INTO orders SELECT generate_series(1, 3)")
    with pytest.raises(errors.UniqueViolation):
        sql.execute("INSERT INTO orders VALUES (4), (3)")
    assert td.tick().completed == 3
    assert sorted(seen) == [1, 2, 3]


def test_a_worker_is_notified(td: Treadle, postgres_url: str, sql: psycopg.Connection[Any]) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as listener:
        listener.execute("LISTEN treadle")
        enqueue(sql, "known")
        [heard] = listener.notifies(timeout=30, stop_after=1)
    assert (heard.channel, heard.payload) == ("treadle", "mail")
