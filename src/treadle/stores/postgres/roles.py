"""Who may do what: an owner, workers, and producers that see one tenant at a time. See `docs/postgresql.md`.

Whose rows a producer sees is a setting of its transaction, `treadle.tenant`. While that is absent or empty it sees
nothing, not even jobs without a tenant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from treadle.errors import BadOption
from treadle.job import Job, NewJob
from treadle.stores.transaction import Insert, Transaction

ALL = "treadle_all"
"""The policy of roles that see every tenant; the store finds out by this name whether its role is one of them."""


class Roles(NamedTuple):
    """Names of roles. None of them logs in: you make your users members of them."""

    owner: str = "treadle_owner"
    worker: str = "treadle_worker"
    producer: str = "treadle_producer"


class Rights(NamedTuple):
    worker: str
    producer: str


EVERYTHING = "SELECT, INSERT, UPDATE, DELETE"

OF_TENANTS = {
    "jobs": Rights(EVERYTHING, "SELECT, INSERT, UPDATE (priority, queue), DELETE"),
    # UPDATE of a column is what `SELECT … FOR UPDATE` asks for.
    "ready": Rights(
        EVERYTHING, "SELECT, INSERT, UPDATE (run_at, priority, queue, updated_at, start_by, parked), DELETE"
    ),
    "lease_keys": Rights(EVERYTHING, "SELECT"),
    "leases": Rights(EVERYTHING, "SELECT, UPDATE (cancel)"),  # so that a producer claims and settles nothing
    "finished": Rights(EVERYTHING, "SELECT, INSERT, UPDATE (completed_at), DELETE"),
    "attempts": Rights(EVERYTHING, "SELECT, DELETE"),
    "dedupe": Rights(EVERYTHING, "SELECT, INSERT, UPDATE, DELETE"),
    "usage": Rights(EVERYTHING, "SELECT"),
    "audit": Rights("SELECT, INSERT, DELETE", "SELECT"),
    "requests": Rights(EVERYTHING, "SELECT, INSERT, UPDATE (ids)"),
    "pauses": Rights(EVERYTHING, "SELECT"),  # of its own tenant; those of queues and types have no tenant
    "schedules": Rights(EVERYTHING, EVERYTHING),
    "fired": Rights(EVERYTHING, "SELECT, INSERT, DELETE"),
    "steps": Rights(EVERYTHING, "SELECT, UPDATE (kind, value), DELETE"),
    "waits": Rights(EVERYTHING, "SELECT, INSERT, UPDATE (met, since, until), DELETE"),
    "signals": Rights(EVERYTHING, "SELECT, INSERT"),
    "arrivals": Rights(EVERYTHING, "SELECT, INSERT"),
    "batches": Rights(EVERYTHING, "SELECT, INSERT, UPDATE (closed_at)"),
    "batch_counts": Rights(EVERYTHING, "SELECT, INSERT"),
    "logs": Rights(EVERYTHING, "SELECT, DELETE"),
}
"""Tables with a tenant in each row, on which the policies are."""

OF_ALL = {
    "meta": Rights("SELECT", "SELECT"),
    "limits": Rights(EVERYTHING, ""),  # these three name keys, which may be other tenants
    "openings": Rights(EVERYTHING, ""),
    "buckets": Rights(EVERYTHING, ""),
    "types": Rights("SELECT, INSERT, UPDATE", "SELECT"),
    "workers": Rights(EVERYTHING, ""),
    "tallies": Rights(EVERYTHING, "INSERT"),  # sums over all tenants: to be added to, not to be seen
    "backlog": Rights("SELECT, INSERT, DELETE", ""),  # the same
    # The records of the HTTP API, which serves all tenants and checks by itself who may see what.
    "tokens": Rights("SELECT, INSERT, DELETE", ""),
    "operations": Rights(EVERYTHING, ""),
    "job": Rights("SELECT", "SELECT"),  # a view, which shows what its reader may see of the tables
    "limited_leases": Rights("SELECT", "SELECT"),  # the same
}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,62}")
"""Without $ and quotes, as it also stands inside of quoted code."""

_CREATE = """
DO $$
DECLARE wanted name;
BEGIN
    FOREACH wanted IN ARRAY ARRAY[{names}]::name[] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
        END IF;
    END LOOP;
END $$;
"""

# The role that has owned them becomes a member of the new owner, so that no user is locked out.
_OWN = """
DO $$
DECLARE
    before name := (SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'treadle');
    thing regclass;
    routine regprocedure;
BEGIN
    IF before <> {name} AND NOT pg_has_role(before, {name}, 'USAGE') THEN
        EXECUTE format('GRANT %I TO %I', {name}, before);
    END IF;
    IF before <> {name} THEN
        EXECUTE format('ALTER SCHEMA treadle OWNER TO %I', {name});
    END IF;
    FOR thing IN SELECT oid FROM pg_class WHERE relnamespace = 'treadle'::regnamespace AND relkind IN ('r', 'v', 'S')
                    AND pg_get_userbyid(relowner) <> {name}
                  ORDER BY relkind = 'S' LOOP  -- the sequence of a column goes with its table
        EXECUTE format('ALTER TABLE %s OWNER TO %I', thing, {name});
    END LOOP;
    FOR routine IN SELECT oid FROM pg_proc WHERE pronamespace = 'treadle'::regnamespace
                      AND pg_get_userbyid(proowner) <> {name} LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', routine, {name});
    END LOOP;
END $$;
"""

_POLICIES = """
ALTER TABLE treadle.{table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE treadle.{table} FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS treadle_all ON treadle.{table};
CREATE POLICY treadle_all ON treadle.{table} TO {owner}, {worker} USING (true) WITH CHECK (true);
DROP POLICY IF EXISTS treadle_tenant ON treadle.{table};
CREATE POLICY treadle_tenant ON treadle.{table} TO {producer}
    USING (tenant <> '' AND tenant = current_setting('treadle.tenant', true))
    WITH CHECK (tenant <> '' AND tenant = current_setting('treadle.tenant', true));
"""


def script(roles: Roles) -> str:
    """All of it as SQL. It may be run again, and has to be after an upgrade: for tables that are new."""
    for option, name in roles._asdict().items():
        if not _NAME.fullmatch(name):
            raise BadOption(option, name, "the name of a role: at most 63 letters, digits and any of _ . @ -")
    if len(set(roles)) < len(roles):
        raise BadOption("roles", tuple(roles), "three roles, each with a name of its own")
    owner, worker, producer = (f'"{name}"' for name in roles)
    parts = [
        "-- The roles. None of them logs in: GRANT them to those who do.",
        _CREATE.format(names=", ".join(f"'{name}'" for name in roles)),
        "-- Who owns the tables may upgrade them.",
        _OWN.format(name=f"'{roles.owner}'"),
        "-- Rights, from the ground up.",
        f"REVOKE ALL ON ALL TABLES IN SCHEMA treadle FROM PUBLIC, {worker}, {producer};",
        f"REVOKE ALL ON SEQUENCE treadle.lease FROM PUBLIC, {worker}, {producer};",
        f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA treadle FROM PUBLIC, {worker}, {producer};",
        f"REVOKE ALL ON SCHEMA treadle FROM PUBLIC, {worker}, {producer};",
        f"GRANT USAGE ON SCHEMA treadle TO {worker}, {producer};",
        f"GRANT USAGE, SELECT ON SEQUENCE treadle.lease TO {worker};",
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA treadle TO {worker}, {producer};",
        *_grants(worker, producer),
        "",
        "-- Owner and workers see every tenant, a producer the one that it names.",
        *(_POLICIES.format(table=table, owner=owner, worker=worker, producer=producer) for table in OF_TENANTS),
    ]
    return "\n".join(part.strip("\n") for part in parts) + "\n"


def _grants(worker: str, producer: str) -> list[str]:
    return [
        f"GRANT {rights} ON treadle.{table} TO {role};"
        for table, granted in {**OF_TENANTS, **OF_ALL}.items()
        for rights, role in ((granted.worker, worker), (granted.producer, producer))
        if rights
    ]


# Acting for tenants, if the role of our connections sees one tenant at a time.
#
# The tenant is a setting of the transaction and of nothing longer: a pooler hands on to others what a session keeps.
# Where the connection itself names a tenant (`?options=-c treadle.tenant=acme`), that is left alone.

# The tenant whose rows this role sees, if not all (it has policies, and not the one that shows everything): '' if each
# transaction names it.
SCOPE = """
SELECT coalesce(current_setting('treadle.tenant', true), '')
 WHERE row_security_active('treadle.jobs') AND NOT EXISTS (
    SELECT 1 FROM pg_policy p CROSS JOIN unnest(p.polroles) r (role)
     WHERE p.polrelid = 'treadle.jobs'::regclass AND p.polname = 'treadle_all' AND pg_has_role(r.role, 'USAGE'))
"""

# Act for a tenant, or for none, until the transaction ends.
SET_TENANT = "SELECT set_config('treadle.tenant', CAST(:tenant AS text), true)"

# On a connection of the user's: whether a tenant has to be named there, and is not.
IS_OPEN = """
SELECT row_security_active('treadle.jobs') AND coalesce(current_setting('treadle.tenant', true), '') = ''
"""


def insert_for_tenants(tx: Transaction, jobs: Sequence[NewJob], how: Insert) -> list[Job]:
    """`how`, for one tenant after the other. In their order, which is the order in which keys are taken."""
    stored: dict[str, Job] = {}
    for tenant in sorted({job.tenant for job in jobs}):
        tx.act_for(tenant)
        theirs = [job for job in jobs if job.tenant == tenant]
        stored.update(zip((job.id for job in theirs), how(tx, theirs), strict=True))
    return [stored[job.id] for job in jobs]
