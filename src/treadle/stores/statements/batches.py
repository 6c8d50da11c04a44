"""Batches, and the counts of their members."""

from treadle.stores.statements.parts import THESE

_SUMS = ", ".join(f"coalesce(sum(c.{column}), 0)" for column in ("added", "completed", "failed", "cancelled"))
# The batches that [[tenant, name], …] names.
_NAMED = """
    FROM jsonb_array_elements(CAST(:names AS text)::jsonb) e
    JOIN treadle.batches b ON b.tenant = e ->> 0 AND b.name = e ->> 1
"""


class Batches:
    """What stores, counts, closes and lists batches."""

    ADD_BATCH = """
        INSERT INTO treadle.batches (tenant, name, then_job, else_job, closings, created_at)
        VALUES (CAST(:tenant AS text), CAST(:name AS text), CAST(:then_job AS text), CAST(:else_job AS text), 0,
                CAST(:now AS bigint))
            ON CONFLICT DO NOTHING RETURNING 1
    """
    # Whether it is the very batch that an earlier try has stored: requests have ids.
    SAME_BATCH = """
        SELECT 1 FROM treadle.batches
         WHERE tenant = CAST(:tenant AS text) AND name = CAST(:name AS text)
           AND coalesce(then_job, '') = coalesce(CAST(:then_job AS text), '')
           AND coalesce(else_job, '') = coalesce(CAST(:else_job AS text), '')
    """
    # The members among these jobs.
    BATCHES_OF = f"SELECT id::text, tenant, batch FROM treadle.jobs WHERE id = {THESE} AND batch IS NOT NULL"
    # [[tenant, batch, added, completed, failed, cancelled], …]
    ADD_BATCH_COUNTS = """
        INSERT INTO treadle.batch_counts (tenant, batch, added, completed, failed, cancelled)
        SELECT e ->> 0, e ->> 1, (e ->> 2)::bigint, (e ->> 3)::bigint, (e ->> 4)::bigint, (e ->> 5)::bigint
          FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
    """
    # A member is retried: its batch does not close until we commit.
    REOPEN_BATCH = """
        UPDATE treadle.batches SET closed_at = NULL
         WHERE tenant = CAST(:tenant AS text) AND name = CAST(:name AS text) RETURNING 1
    """

    # ---- match

    # Those that exist, and of these the ones that no other transaction has locked.
    EXISTING_BATCHES = f"SELECT b.tenant, b.name {_NAMED}"
    LOCK_FREE_BATCHES = f"""
        SELECT b.tenant, b.name, b.then_job, b.else_job, b.closings, b.closed_at {_NAMED}
         ORDER BY b.tenant, b.name FOR UPDATE OF b SKIP LOCKED
    """
    # Close or open them. [[tenant, name, closed_at, closings, last job or null for as before], …]
    SET_BATCHES = """
        UPDATE treadle.batches AS b SET closed_at = (e ->> 2)::bigint, closings = (e ->> 3)::integer,
               last_job = coalesce(e ->> 4, b.last_job)
          FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e WHERE b.tenant = e ->> 0 AND b.name = e ->> 1
    """

    # ---- look

    _BATCH = f"""
        SELECT b.tenant, b.name, b.then_job, b.else_job, b.closings, b.closed_at, b.last_job, b.created_at,
               (SELECT json_build_array({_SUMS})::text FROM treadle.batch_counts c
                 WHERE c.batch = b.name AND c.tenant = b.tenant)
          FROM treadle.batches b
    """
    _OLDER = "(b.created_at, b.tenant, b.name) < (:before, :before_tenant, :before_name)"
    _NEWEST = "ORDER BY b.created_at DESC, b.tenant DESC, b.name DESC LIMIT :limit"
    BATCH = f"{_BATCH} WHERE b.tenant = CAST(:tenant AS text) AND b.name = CAST(:name AS text)"
    BATCHES = f"{_BATCH} WHERE {_OLDER} {_NEWEST}"
    BATCHES_OF_TENANT = f"{_BATCH} WHERE b.tenant = :tenant AND {_OLDER} {_NEWEST}"

    # Those that closed long ago and of whose members none is left.
    PRUNE_BATCHES = """
        DELETE FROM treadle.batches WHERE (tenant, name) IN (
            SELECT b.tenant, b.name FROM treadle.batches b
             WHERE b.closed_at < :before AND NOT EXISTS (
                   SELECT 1 FROM treadle.jobs j WHERE j.batch = b.name AND j.tenant = b.tenant)
             ORDER BY b.closed_at LIMIT :limit FOR UPDATE SKIP LOCKED)
        RETURNING tenant, name
    """
