"""Acting for tenants, where the role of our connections sees one tenant at a time. See roles.py for who that is.

The tenant is a setting of the transaction and of nothing longer: what a session keeps, a pooler hands on to others.
Where the connection itself names a tenant (`?options=-c windlass.tenant=acme`), that is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windlass.errors import BadOption
from windlass.job import Job, NewJob
from windlass.stores.postgres import statements as sql
from windlass.stores.postgres.connection import NOTHING
from windlass.stores.sql.transaction import Transaction

Insert = Callable[[Transaction, Sequence[NewJob]], list[Job]]


def insert(tx: Transaction, jobs: Sequence[NewJob], how: Insert) -> list[Job]:
    """`how`, for one tenant after the other. In their order, which is the order in which keys are taken."""
    stored: dict[str, Job] = {}
    before = ""
    for tenant in sorted({job.tenant for job in jobs}):
        if not tenant:
            raise BadOption("tenant", "", "this role acts for one tenant at a time: using(tenant=…)")
        if tx.value(sql.SET_TENANT, {"tenant": tenant, "before": before}) is not None:
            before = tenant
        theirs = [job for job in jobs if job.tenant == tenant]
        stored.update(zip((job.id for job in theirs), how(tx, theirs), strict=True))
    return [stored[job.id] for job in jobs]


def insert_within(tx: Transaction, jobs: Sequence[NewJob], how: Insert) -> list[Job]:
    """`insert` in a transaction of the user's, whose role we do not know, and which goes on as it was."""
    if not all(job.tenant for job in jobs) or not tx.value(sql.TENANT_IS_OPEN):
        return how(tx, jobs)
    stored = insert(tx, jobs, how)
    tx.execute(sql.UNSET_TENANT)
    return stored


class Reader:
    """Reads of one moment, in which the rows of a tenant can be seen."""

    sql = sql

    def __init__(self, tx: Transaction, tenant: str) -> None:
        self._tx = tx
        self._tenant = tenant

    def execute(self, statement: str, parameters: Mapping[str, Any] = NOTHING, /) -> Any:
        rows = self._tx.execute(statement, parameters)
        if statement is sql.SNAPSHOT:
            self._tx.execute(sql.SET_TENANT, {"tenant": self._tenant, "before": ""})
        return rows

    def value(self, statement: str, parameters: Mapping[str, Any] = NOTHING, /) -> Any:
        return self._tx.value(statement, parameters)
