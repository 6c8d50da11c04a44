"""The library as a producer, which acts for one tenant at a time, also in the user's own transaction."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest

from tests.conformance.helpers import (
    HOUR,
    limit,
    new_job,
    put,
)
from tests.conformance.tenants.place import (
    REFUSED,
    fill,
)
from treadle import Dedupe, Treadle
from treadle.errors import BadOption, KeyHeld, ScheduleNotFound, StoreUnusable
from treadle.filters import Filter
from treadle.schedule import NewSchedule, Rule
from treadle.stores.base import ClaimRequest


def test_a_producer_enqueues_through_the_library(place, store):
    td = Treadle(place.url("producer"))
    limit(store, "mail", 7)

    one = td.enqueue("mail", {"to": "ada"}, tenant="acme")
    many = td.enqueue_many([td.request("mail", {"n": n}, tenant=tenant) for n in range(3) for tenant in ("b", "a")])
    first = td.enqueue("mail", {}, tenant="acme", dedupe="once")
    again = td.enqueue("mail", {}, tenant="acme", dedupe="once")
    theirs = td.enqueue("mail", {}, tenant="other", dedupe="once")

    assert first.id == again.id != theirs.id
    assert ["b", "a"] * 3 == [job.tenant for job in many]
    assert {one.id, first.id, theirs.id, *(job.id for job in many)} == {j.id for j in store.jobs(Filter(), 50)}
    assert [one.id, first.id] == [job.id for job in td.jobs(tenant="acme")][::-1]
    assert 3 == len(td.jobs(tenant="a").jobs)
    assert [] == td.jobs().jobs
    assert td.get(one.id) is None  # no tenant is named
    td.close()


@pytest.mark.parametrize("mode", ["return", "replace", "debounce", "throttle", "reject"])
def test_a_producer_uses_every_dedupe_mode(place, store, mode):
    times = {"debounce": {"wait": 5, "at_most": 60}, "throttle": {"period": 60}}.get(mode, {})
    td = Treadle(place.url("producer"))
    options = {"tenant": "acme", "dedupe": Dedupe("one", mode=mode, **times)}
    first = td.enqueue("index", {"n": 1}, **options)
    if mode == "debounce":
        store.run_now(first.id)
    [claimed] = store.claim("", ClaimRequest(limit=1, lease_for=HOUR))
    with suppress(KeyHeld):
        td.enqueue("index", {"n": 2}, **options)
    assert first.id == claimed.id
    assert (2 if mode in ("replace", "debounce") else 1) == len(store.jobs(Filter(), 10))


def test_a_producer_cannot_enqueue_a_job_without_a_tenant(place):
    td = Treadle(place.url("producer"))
    with pytest.raises(BadOption, match=r"tenant=''.*using\(tenant="):
        td.enqueue("mail")
    td.close()


def test_the_store_does_not_keep_a_tenant_on_its_connections(place, store, producer):
    put(producer, tenant="acme"), put(producer, tenant="other")
    tenants = "SELECT count(*), coalesce(max(current_setting('treadle.tenant', true)), '') FROM treadle.jobs"

    for pool in ("insert", "read", "other"):
        assert [(0, "")] == producer.database.read(pool, lambda tx: tx.execute(tenants).fetchall())
    assert 1 == len(producer.jobs(Filter(tenants=("acme",)), 10).jobs)
    assert [(0, "")] == producer.database.read("read", lambda tx: tx.execute(tenants).fetchall())


def test_enqueues_of_several_tenants_share_a_commit(place, store, producer):
    groups = [[new_job(tenant=tenant, dedupe=key)] for tenant in ("b", "a", "b") for key in (None, "k")]
    answers = producer.insert_groups(groups)

    assert [[job.tenant for job in group] for group in groups] == [[job.tenant for job in jobs] for jobs in answers]
    assert answers[1][0].id == answers[5][0].id
    with psycopg.connect(place.admin) as connection:
        unkeyed = "SELECT count(*), count(DISTINCT xmin::text) FROM treadle.jobs WHERE dedupe IS NULL"
        assert [(3, 1)] == connection.execute(unkeyed).fetchall()


def test_a_producer_whose_url_names_a_tenant_manages_that_tenants_jobs(place, store):
    ids, others = fill(store, "acme"), fill(store, "other")
    td = Treadle(place.url("producer", "acme"))

    assert ids == {job.status.value: job.id for job in td.jobs()}
    assert 5 == sum(row["count"] for row in td.counts())
    assert [{"tenant": "acme", "count": 5}] == td.counts(("tenant",))
    assert 1 == len(td.attempts(ids["failed"]))
    assert ("fast", 7) == ((moved := td.reschedule(ids["pending"], queue="fast", priority=7)).queue, moved.priority)
    assert "cancelled" == td.cancel(ids["pending"]).status
    assert "processing" == td.cancel(ids["processing"]).status
    assert "pending" == td.retry(ids["failed"]).status
    assert ids["completed"] == td.delete(ids["completed"]).id
    for id in others.values():
        assert td.get(id) is None
        assert [] == td.attempts(id)
        for verb in (td.cancel, td.retry, td.delete):
            with pytest.raises(LookupError):
                verb(id)
    td.close()


def test_a_producer_whose_url_names_a_tenant_cannot_enqueue_for_another(place, store):
    td = Treadle(place.url("producer", "acme"))
    mine = td.enqueue("mail", tenant="acme")
    with pytest.raises(StoreUnusable, match="row-level security"):
        td.enqueue("mail", tenant="other")
    assert [mine.id] == [job.id for job in store.jobs(Filter(), 10)]
    td.close()


def test_a_producer_makes_batches_for_its_tenants(place, store):
    td = Treadle(place.url("producer"))
    for tenant in ("acme", "globex"):
        with td.batch("import-7", tenant=tenant) as batch:
            request = batch.add(td.request("load", {}, tenant=tenant))
    store.complete([request.id])
    store.match()
    assert [batch.tenant for batch in td.batches.list("acme")] == ["acme"]
    assert td.batches.get("import-7") is None
    assert (td.batches.get("import-7", tenant="globex").is_open, store.batch("globex", "import-7").closings) == (
        False,
        1,
    )


def test_a_producer_has_schedules_of_its_tenants(place, store):
    td = Treadle(place.url("producer"))
    store.put_schedule(NewSchedule(name="shared", type="mail", rule=Rule(every=60_000_000)))
    for tenant in ("acme", "other"):
        td.schedules.put("digest", "mail", every=60, payload={"to": tenant}, tenant=tenant)

    assert [s.tenant for s in td.schedules.list("acme")] == ["acme"]
    assert td.schedules.list().schedules == []  # no tenant is named
    assert td.schedules.get("shared") is None
    assert td.schedules.pause("digest", tenant="acme", by="ada", reason="invoice").pause.by == "ada"
    assert td.schedules.run_now("digest", tenant="acme").payload == {"to": "acme"}
    assert td.schedules.resume("digest", tenant="acme").pause is None
    assert "fires next" in td.schedules.why("digest", tenant="acme").reasons[-1].text
    assert td.schedules.delete("digest", tenant="acme").name == "digest"
    with pytest.raises(ScheduleNotFound):
        td.schedules.pause("shared")
    with pytest.raises(StoreUnusable, match="row-level security"):
        td.schedules.put("mine", "mail", every=60)
    assert [(s.tenant, s.name) for s in store.schedules()] == [("", "shared"), ("other", "digest")]
    td.close()


def test_a_producer_sends_signals_of_its_tenants(place, store):
    td = Treadle(place.url("producer"))
    for tenant in ("acme", "other"):
        assert td.signal("go", tenant, tenant=tenant).value == tenant
    assert td.signal("go", "again", tenant="acme").value == "acme"
    assert td.get_signal("go", tenant="other").value == "other"
    assert td.get_signal("go") is None
    with psycopg.connect(place.url("producer")) as mine:
        td.signal("mine", 1, tenant="acme", connection=mine)
        assert mine.execute("SELECT * FROM treadle.signals").fetchall() == []  # it names no tenant afterwards
    assert store.get_signal("mine", "acme").value == 1
    with pytest.raises(StoreUnusable, match="row-level security"):
        td.signal("none")
    td.close()


def test_a_producer_enqueues_behind_parents_of_its_tenant(place, store):
    td = Treadle(place.url("producer"))
    parent, others = td.enqueue("a", tenant="acme"), td.enqueue("a", tenant="other")
    assert td.enqueue("b", tenant="acme", after=parent).status == "blocked"
    with pytest.raises(BadOption, match="there is no such job"):
        td.enqueue("b", tenant="acme", after=others)
    td.close()


# In the user's own transaction


def test_a_schedule_of_a_tenant_is_part_of_the_users_transaction(place, store):
    td = Treadle(place.url("producer"))
    with psycopg.connect(place.url("producer")) as mine:
        td.schedules.put("digest", "mail", every=60, tenant="acme", connection=mine)
        assert [] == mine.execute("SELECT * FROM treadle.schedules").fetchall()
        assert [] == store.schedules()
        mine.commit()
    assert ["acme"] == [row.tenant for row in store.schedules()]
    td.close()


def test_on_a_users_connection_the_tenant_is_set_only_during_the_enqueue(place, store):
    td = Treadle(place.url("producer"))
    with psycopg.connect(place.url("producer")) as mine:
        job = td.enqueue("mail", tenant="acme", connection=mine)
        assert [] == mine.execute("SELECT * FROM treadle.job").fetchall()
        mine.commit()
        assert [] == mine.execute("SELECT * FROM treadle.job").fetchall()
    assert "acme" == store.get(job.id).tenant
    td.close()


def test_a_tenant_that_the_user_has_set_on_the_connection_stays(place, store):
    td = Treadle(place.url("producer"))
    with psycopg.connect(place.url("producer")) as mine:
        mine.execute("SELECT set_config('treadle.tenant', 'acme', true)")
        job = td.enqueue("mail", tenant="acme", connection=mine)
        with pytest.raises(REFUSED, match="row-level security"):
            td.enqueue("mail", tenant="other", connection=mine)
        assert [(job.id,)] == mine.execute("SELECT id::text FROM treadle.job").fetchall()
    assert [job.id] == [job.id for job in store.jobs(Filter(), 10)]
    td.close()


def test_no_tenant_is_set_on_a_connection_that_sees_all_tenants(place, store):
    td = Treadle(place.url("producer"))
    with psycopg.connect(place.admin) as mine:
        td.enqueue("mail", tenant="acme", connection=mine)
        [[setting]] = mine.execute("SELECT current_setting('treadle.tenant', true)").fetchall()
        assert setting is None
    td.close()
