"""Acting for tenants, where the role of our connections sees one tenant at a time. roles.py says which role that is.

The tenant is a setting of the transaction and of nothing longer: a pooler hands on to others what a session keeps.
Where the connection itself names a tenant (`?options=-c treadle.tenant=acme`), that is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.errors import BadOption
from treadle.job import Job, NewJob
from treadle.stores.sql.insert import Insert
from treadle.stores.sql.transaction import Transaction

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


def insert(tx: Transaction, jobs: Sequence[NewJob], how: Insert, scope: str) -> list[Job]:
    """`how`, for one tenant after the other. In their order, which is the order in which keys are taken."""
    if not all(job.tenant for job in jobs):
        raise BadOption("tenant", "", "this role acts for one tenant at a time: using(tenant=…)")
    if scope:
        return how(tx, jobs)
    stored: dict[str, Job] = {}
    for tenant in sorted({job.tenant for job in jobs}):
        tx.execute(SET_TENANT, {"tenant": tenant})
        theirs = [job for job in jobs if job.tenant == tenant]
        stored.update(zip((job.id for job in theirs), how(tx, theirs), strict=True))
    return [stored[job.id] for job in jobs]


def insert_within(tx: Transaction, jobs: Sequence[NewJob], how: Insert) -> list[Job]:
    """`insert` in a transaction of the user's, whose role we do not know, and which goes on as it was."""
    if not all(job.tenant for job in jobs) or not tx.value(IS_OPEN):
        return how(tx, jobs)
    stored = insert(tx, jobs, how, "")
    tx.execute(SET_TENANT, {"tenant": ""})
    return stored
