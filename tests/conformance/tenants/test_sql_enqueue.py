"""`SELECT treadle.enqueue(…)` with the rights of each role."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from tests.conformance.tenants.place import Place
from tests.conformance.test_sql_enqueue import enqueue
from treadle.stores.postgres.store import PostgresStore


def test_a_producer_enqueues_for_one_tenant_at_a_time(place: Place, store: PostgresStore) -> None:
    with psycopg.connect(place.url("producer"), autocommit=True) as producer:
        job = enqueue(producer, "noop", tenant="acme", dedupe="k")
        assert enqueue(producer, "noop", tenant="acme", dedupe="k") == job
        assert enqueue(producer, "noop", tenant="other", dedupe="k") != job
        assert producer.execute("SELECT count(*) FROM treadle.jobs").fetchone() == (0,)  # it names no tenant now
        with pytest.raises(errors.InvalidParameterValue, match="one tenant at a time: pass tenant"):
            enqueue(producer, "noop")
    stored = store.get(job)
    assert stored is not None
    assert stored.tenant == "acme"


def test_a_connection_that_names_its_tenant_enqueues_for_no_other(place: Place, store: PostgresStore) -> None:
    with psycopg.connect(place.url("producer", "acme"), autocommit=True) as acme:
        assert store.get(enqueue(acme, "noop", tenant="acme")) is not None
        for other in ("other", ""):
            with pytest.raises(errors.InsufficientPrivilege):
                enqueue(acme, "noop", tenant=other)


def test_a_worker_enqueues_without_a_tenant(place: Place, store: PostgresStore) -> None:
    with psycopg.connect(place.url("worker"), autocommit=True) as worker:
        stored = store.get(enqueue(worker, "noop"))
    assert stored is not None
    assert stored.tenant == ""


def test_nobody_else_may_call_it(place: Place, store: PostgresStore) -> None:
    store.open()
    with psycopg.connect(place.admin) as connection:
        found = connection.execute(
            "SELECT oid::regprocedure::text FROM pg_proc"
            " WHERE pronamespace = 'treadle'::regnamespace AND has_function_privilege('public', oid, 'EXECUTE')"
        )
        assert found.fetchall() == []
