"""Schedules, and the jobs that they fire."""

from treadle.stores.rows import ScheduleRow

# A schedule has a column per field of ScheduleRow.
_NUMBERS = ("every", "anchor", "revision", "next_at", "paused_at", "paused_until", "last_moment", "skipped_at")
_TYPES = dict.fromkeys(ScheduleRow.__struct_fields__, "text")
_TYPES |= dict.fromkeys((*_NUMBERS, "created_at", "updated_at"), "bigint")
_TYPES |= dict.fromkeys(("priority", "max_attempts"), "integer")
_OF_SCHEDULE = ", ".join(_TYPES)
_S_OF_SCHEDULE = ", ".join(f"s.{column}" for column in _TYPES)
_NEW_SCHEDULE = ", ".join(f"CAST(:{column} AS {type})" for column, type in _TYPES.items())
_SET_SCHEDULE = ", ".join(f"{column} = CAST(:{column} AS {type})" for column, type in _TYPES.items())


class Schedules:
    """What stores, lists and fires schedules."""

    SCHEDULE = f"""
        SELECT {_OF_SCHEDULE} FROM treadle.schedules
         WHERE tenant = CAST(:tenant AS text) AND name = CAST(:name AS text)
    """
    # ... which nobody fires or changes until we commit.
    LOCK_SCHEDULE = f"{SCHEDULE} FOR UPDATE"
    ADD_SCHEDULE = f"""
        INSERT INTO treadle.schedules ({_OF_SCHEDULE}) VALUES ({_NEW_SCHEDULE}) ON CONFLICT DO NOTHING RETURNING 1
    """
    SET_SCHEDULE = f"""
        UPDATE treadle.schedules SET {_SET_SCHEDULE}
         WHERE tenant = CAST(:tenant AS text) AND name = CAST(:name AS text)
    """
    DELETE_SCHEDULE = """
        DELETE FROM treadle.schedules WHERE tenant = CAST(:tenant AS text) AND name = CAST(:name AS text)
    """
    DROP_FIRED = """
        DELETE FROM treadle.fired WHERE tenant = CAST(:tenant AS text) AND schedule = CAST(:name AS text)
    """
    SCHEDULES = f"""
        SELECT {_OF_SCHEDULE} FROM treadle.schedules WHERE (tenant, name) > (:tenant, :name)
         ORDER BY tenant, name LIMIT :limit
    """
    SCHEDULES_OF_TENANT = f"""
        SELECT {_OF_SCHEDULE} FROM treadle.schedules WHERE tenant = :tenant AND name > :name ORDER BY name LIMIT :limit
    """
    OVERDUE_SCHEDULES = f"""
        SELECT {_OF_SCHEDULE} FROM treadle.schedules WHERE next_at < :before ORDER BY next_at LIMIT :limit
    """
    DECLARED_SCHEDULES = f"""
        SELECT {_OF_SCHEDULE} FROM treadle.schedules WHERE source = 'code' ORDER BY name LIMIT :limit
    """
    # When the next schedule is due: the first entry of an index.
    NEXT_FIRE = "SELECT next_at FROM treadle.schedules WHERE next_at IS NOT NULL ORDER BY next_at LIMIT 1"
    # Schedules with what their jobs get: of their own, or of their type.
    _TO_FIRE = f"""
        SELECT {_S_OF_SCHEDULE}, coalesce(s.queue, t.queue, 'default'), coalesce(s.priority, t.priority, 0),
               coalesce(s.max_attempts, t.max_attempts, 5), coalesce(t.fair, '')
          FROM treadle.schedules s LEFT JOIN treadle.types t ON t.type = s.type
    """
    # Those that are due. One that is locked is being fired or changed by another transaction.
    DUE_SCHEDULES = f"{_TO_FIRE} WHERE s.next_at <= :now ORDER BY s.next_at LIMIT :limit FOR UPDATE OF s SKIP LOCKED"
    LOCK_TO_FIRE = f"{_TO_FIRE} WHERE s.tenant = :tenant AND s.name = :name FOR UPDATE OF s"
    # Move schedules on, if they are as they were read. The answer: those that were.
    # [[tenant, name, next_at, revision, new next_at, last job, its moment, skipped moment, why], …]
    ADVANCE_SCHEDULES = """
        UPDATE treadle.schedules AS s SET next_at = (e ->> 4)::bigint, last_job = coalesce(e ->> 5, s.last_job),
               last_moment = coalesce((e ->> 6)::bigint, s.last_moment),
               skipped_at = coalesce((e ->> 7)::bigint, s.skipped_at), skipped_why = coalesce(e ->> 8, s.skipped_why),
               paused_at = NULL, paused_by = NULL, paused_reason = NULL, paused_until = NULL
          FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
         WHERE s.tenant = e ->> 0 AND s.name = e ->> 1 AND s.next_at = (e ->> 2)::bigint
           AND s.revision = (e ->> 3)::bigint
        RETURNING tenant, name
        """
    # [[tenant, schedule, id], …]
    ADD_FIRED = """
        INSERT INTO treadle.fired (tenant, schedule, id)
        SELECT e ->> 0, e ->> 1, (e ->> 2)::uuid FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
         WHERE true ON CONFLICT DO NOTHING
        """
    # Of [[tenant, schedule], …], the jobs that have not ended, each with whether it runs.
    UNENDED = """
        SELECT d.tenant, d.schedule, d.id::text,
               EXISTS (SELECT 1 FROM treadle.leases l WHERE l.id = d.id AND l.tenant = d.tenant)
          FROM jsonb_array_elements(CAST(:names AS text)::jsonb) e
          JOIN treadle.fired d ON d.tenant = e ->> 0 AND d.schedule = e ->> 1
         WHERE EXISTS (SELECT 1 FROM treadle.jobs j WHERE j.id = d.id AND j.tenant = d.tenant)
           AND NOT EXISTS (SELECT 1 FROM treadle.finished f WHERE f.id = d.id AND f.tenant = d.tenant)
         ORDER BY d.id
        """
    SET_LAST_JOB = "UPDATE treadle.schedules SET last_job = :id WHERE tenant = :tenant AND name = :name"
