"""SQLite's own SQL. What all databases share is in `stores/sql.py`, and what a job meets on its way in
`insert_claim_settle_sql.py`.

Batches travel as one JSON text each way: a statement that moves 500 rows is one step of SQLite, during which Python
runs handlers on another core. (Row by row, each step would have to win the interpreter back.)
"""

import re
from itertools import product
from typing import ClassVar

from treadle.codec import encode
from treadle.filters import MOST_SEARCHED, is_index
from treadle.stores.sql import DEDUPE_RULE, MOST, STUCK, UNTHROTTLED, Statements


def from_postgres(sql: str) -> str:
    """The same for SQLite, which has no schemas, needs no casts, locks no rows, and calls `least` min."""
    sql = re.sub(r"\s+FOR (?:NO KEY |KEY )?(?:UPDATE|SHARE)\b(?: OF \w+)?(?: SKIP LOCKED)?", "", sql)
    sql = re.sub(r"(?:CAST\()+(:\w+)(?: AS \w+\))+", r"\1", sql)
    sql = re.sub(r"::\w+", "", sql).replace("treadle.", "treadle_")
    return sql.replace("least(", "min(").replace("greatest(", "max(")


_UNTHROTTLED = from_postgres(UNTHROTTLED)

# The fields of ClaimedJob.
CLAIMED_COLUMNS = """
json_array(l.id, l.lease, l.token, l.type, l.queue, l.tenant, j.subject, j.payload, l.attempt, j.max_attempts,
       l.snoozes, l.suspicion, l.run_at, l.started_at, l.deadline, j.dedupe IS NOT NULL, j.traceparent,
       j.fired_at)"""


class SQLiteStatements(Statements):
    """The statements of the verbs, in SQLite's form."""

    def __init__(self) -> None:
        super().__init__(from_postgres)

    # ---- enqueue

    # The ids that an earlier try has stored already.
    EXISTING_IDS = "SELECT id FROM treadle_jobs WHERE id IN (SELECT value FROM json_each(:ids))"
    # Take a dedupe key, or see by the row count that it is held.
    TAKE_KEY = "INSERT INTO treadle_dedupe (tenant, key, id) VALUES (:tenant, :key, :id) ON CONFLICT DO NOTHING"
    # Lock the keys of jobs: nothing to do here.
    LOCK_KEYS: tuple[str, ...] = ()
    HOLD_KEYS: tuple[str, ...] = ()
    DROP_HELD_KEYS = ""
    # The rest of this transaction waits only briefly for locks: here it waits for none.
    WAIT_BRIEFLY: tuple[str, ...] = ()
    # Delete throttled keys whose period is over.
    PRUNE_KEYS = """
    DELETE FROM treadle_dedupe WHERE (tenant, key) IN (
        SELECT tenant, key FROM treadle_dedupe WHERE expires_at <= :now AND successor IS NULL
         ORDER BY expires_at LIMIT :limit)
    """
    # Count rows where they moved. One that was broken by hand must not overflow. [[status, type, queue, how many], …]
    ADD_TALLIES = f"""
    INSERT INTO treadle_tallies (status, type, queue, count)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(:rows) WHERE true
        ON CONFLICT DO UPDATE SET count = max(min(count, {MOST}), -{MOST}) + excluded.count
    """

    # ---- claim

    # 1 if it may claim, 0 if somebody wants it to be quiet.
    IS_ALIVE = "SELECT quiet_at IS NULL FROM treadle_workers WHERE id = :worker"
    DELETE_READY = "DELETE FROM treadle_ready WHERE id IN (SELECT value FROM json_each(:ids))"
    # As ClaimedJob has it: a worker's leases, the lease of one job, and those that are stuck.
    _LEASES = f"SELECT {CLAIMED_COLUMNS} FROM treadle_leases l JOIN treadle_jobs j ON j.id = l.id"
    LEASES_OF_WORKER = f"{_LEASES} WHERE l.worker = :worker"
    LEASE_OF_JOB = f"{_LEASES} WHERE l.id = :id"
    STUCK_LEASES = f"{_LEASES} WHERE {from_postgres(STUCK)}"

    # ---- jobs that were not started in time

    # The first of them: what each is, how long it had, and whether it has a dedupe key.
    EXPIRED = """
    SELECT id, type, queue, start_by - run_at,
           EXISTS (SELECT 1 FROM treadle_jobs j WHERE j.id = treadle_ready.id AND j.dedupe IS NOT NULL)
      FROM treadle_ready WHERE start_by <= :now AND parked <> 'key' ORDER BY start_by LIMIT :limit
    """
    # Lock their keys: nothing to do here, because the one writer locks everything.
    LOCK_FREE_KEYS = ""
    # End them. [[id, error], …]
    FINISH_EXPIRED = """
    INSERT INTO treadle_finished
           (id, lease, token, status, queue, type, tenant, attempts, snoozes, worker, run_at, completed_at, error)
    SELECT r.id, 0, 0, 'cancelled', r.queue, r.type, r.tenant, r.attempts, r.snoozes, '', r.run_at, :now, e.value ->> 1
      FROM json_each(:rows) e JOIN treadle_ready r ON r.id = e.value ->> 0
    """

    # ---- settle

    # Which of [[id, number, token, status], …] ended this way, under this very lease: a repeated commit, not a loss.
    WRITTEN_BEFORE = """
    SELECT f.lease, f.token FROM json_each(:rows) e JOIN treadle_finished f
        ON f.id = e.value ->> 0 AND f.lease = e.value ->> 1 AND f.token = e.value ->> 2 AND f.status = e.value ->> 3
    """
    # [[minute, type, queue, tenant, runs, completed, failures, busy, waiting], …]
    ADD_USAGE = f"""
    INSERT INTO treadle_usage (minute, type, queue, tenant, runs, completed, failures, busy, waiting)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
           value ->> 8
      FROM json_each(:rows) WHERE true
        ON CONFLICT DO UPDATE SET runs = min(runs, {MOST}) + excluded.runs,
           completed = min(completed, {MOST}) + excluded.completed,
           failures = min(failures, {MOST}) + excluded.failures,
           busy = min(busy, {MOST}) + excluded.busy, waiting = min(waiting, {MOST}) + excluded.waiting
    """

    # ---- liveness

    # [[id, number, token, deadline], …]
    MOVE_DEADLINES = """
    UPDATE treadle_leases AS l SET deadline = e.value ->> 3 FROM json_each(:rows) e
     WHERE l.id = e.value ->> 0 AND l.lease = e.value ->> 1 AND l.token = e.value ->> 2
    """

    # ---- rows broken by hand: a job is in one place

    DROP_READY_OF_LEASED = "DELETE FROM treadle_ready WHERE id IN (SELECT id FROM treadle_leases) RETURNING id"
    DROP_LEASES_OF_FINISHED = """
    DELETE FROM treadle_leases WHERE id IN (SELECT f.id FROM treadle_leases l JOIN treadle_finished f ON f.id = l.id)
    RETURNING id, type, queue
    """
    DROP_REPEATED_ATTEMPTS = """
    DELETE FROM treadle_attempts WHERE (id, lease) IN (SELECT id, lease FROM treadle_leases) RETURNING id
    """
    # Of the jobs that wait or run.
    DEFECTIVE_PAYLOADS = """
    SELECT 'payload', count(*), min(j.id)
      FROM (SELECT id FROM treadle_ready UNION ALL SELECT id FROM treadle_leases) p JOIN treadle_jobs j ON j.id = p.id
     WHERE CASE WHEN json_valid(j.payload) THEN json_type(j.payload) <> 'object' ELSE true END
    """

    # ---- pauses

    # Put back the most urgent rows that are parked for this.
    UNPARK = """
    UPDATE treadle_ready SET parked = '' WHERE id IN (
        SELECT id FROM treadle_ready WHERE parked = :parked AND parked <> ''
         ORDER BY parked, priority DESC, run_at, id LIMIT :most)
    RETURNING queue
    """
    # Transactions that may be claiming: none, because nobody else writes while this reads what is committed.
    CLAIMING = "SELECT '' WHERE false"

    # ---- manage

    # Lock a job where it is: nothing to do here, because the one writer locks everything.
    LOCK_JOB: tuple[str, ...] = ()
    # Everything there is to know of some jobs; `to_job` in read.py has the names. Each list starts from its own rows.
    _LAST_ERROR = """CASE WHEN r.attempts > 0 OR r.suspicion > 0 THEN
                (SELECT error FROM treadle_attempts a WHERE a.id = j.id ORDER BY lease DESC LIMIT 1) END"""
    JOB = f"""
    SELECT j.id, j.type, j.queue, j.tenant, j.subject, j.payload, j.priority, j.max_attempts, j.created_at,
           r.run_at, r.attempts, r.snoozes, r.updated_at, r.start_by, r.parked = 'key',
           l.lease, l.run_at, l.attempt, l.snoozes, l.worker, l.started_at, l.fraction, l.message,
           f.status, f.run_at, f.attempts, f.snoozes, f.worker, f.started_at, f.completed_at, f.error, f.result,
           {_LAST_ERROR}, {DEDUPE_RULE}, j.schedule, j.fired_at
    """
    FROM_ALL = """FROM treadle_jobs j
      LEFT JOIN treadle_ready r ON r.id = j.id
      LEFT JOIN treadle_leases l ON l.id = j.id
      LEFT JOIN treadle_finished f ON f.id = j.id"""
    # (`= NULL` finds nothing at once; for `false` SQLite would go through the table, each time.)
    FROM_PENDING = """FROM treadle_ready r CROSS JOIN treadle_jobs j ON j.id = r.id
      LEFT JOIN treadle_leases l ON l.id = NULL LEFT JOIN treadle_finished f ON f.id = NULL"""
    FROM_PROCESSING = """FROM treadle_leases l CROSS JOIN treadle_jobs j ON j.id = l.id
      LEFT JOIN treadle_ready r ON r.id = NULL LEFT JOIN treadle_finished f ON f.id = NULL"""
    FROM_FINISHED = """FROM treadle_finished f CROSS JOIN treadle_jobs j ON j.id = f.id
      LEFT JOIN treadle_ready r ON r.id = NULL LEFT JOIN treadle_leases l ON l.id = NULL"""
    GET = f"{JOB} {FROM_ALL} WHERE j.id = :id"
    # The tables, by their short names in a list.
    TABLES: ClassVar = {name[0]: f"treadle_{name}" for name in ("jobs", "ready", "leases", "finished", "workers")}
    # Conditions of a filter. The value at a path of the payload, as JSON and as text; one broken by hand has nothing.
    _ERROR = f"coalesce(f.error, {_LAST_ERROR})"
    ERROR_HAS = f"instr(lower({_ERROR}), lower(:{{text}})) > 0"
    # Not after a name that may be a secret's, if it has a value; not in a URL that may have a password; and only near
    # the start, because each of the names is looked for. (LIMIT: without it, `e` is computed again for each of them.)
    ERROR_SHOWS = f"""EXISTS (
        SELECT 1 FROM (SELECT e, length(t) AS n, instr(e, t) AS p
                         FROM (SELECT lower(substr({_ERROR}, 1, {MOST_SEARCHED})) AS e,
                                      lower(:{{text}}) AS t LIMIT 1) LIMIT 1)
         WHERE p > 0
           AND NOT (instr(e, '://') BETWEEN 1 AND p - 1 AND instr(substr(e, p), '@') > 0)
           AND NOT EXISTS (SELECT 1 FROM json_each(:markers) m
                            WHERE instr(e, m.value) BETWEEN 1 AND p - 1
                              AND instr(replace(substr(e, instr(e, m.value), p + n - instr(e, m.value)), '=', ':'),
                                        ':') > 0))"""
    PAYLOAD_HAS = "instr(j.payload, :{text}) > 0"
    AT_PATH = (
        "CASE WHEN json_valid(j.payload) THEN j.payload -> :{path} END",
        "CASE WHEN json_valid(j.payload) AND json_type(j.payload, :{path}) = 'text' THEN j.payload ->> :{path} END",
    )

    def paths(self, parts: list[str]) -> list[str]:
        """A path as SQLite writes it, in each of its meanings: a number may be a name or an index."""
        return ["$" + "".join(way) for way in product(*map(_steps, parts))]

    DELETE_JOBS = "DELETE FROM treadle_jobs WHERE id IN (SELECT value FROM json_each(:ids))"
    DELETE_FINISHED = "DELETE FROM treadle_finished WHERE id IN (SELECT value FROM json_each(:ids))"
    DELETE_ATTEMPTS = "DELETE FROM treadle_attempts WHERE id IN (SELECT value FROM json_each(:ids))"
    # Ended before :before. An id carries the time it was made, and nothing ends before it is made, so that only ids
    # before :oldest need to be looked at.
    PRUNABLE = f"""
    SELECT id, status, type, queue FROM treadle_finished f
     WHERE id < :oldest AND completed_at < :before AND status IN (SELECT value FROM json_each(:statuses))
       AND {_UNTHROTTLED}
     ORDER BY id LIMIT :limit
    """
    PRUNE_USAGE = """
    DELETE FROM treadle_usage WHERE (minute, type, queue, tenant) IN
           (SELECT minute, type, queue, tenant FROM treadle_usage WHERE minute < :before
             ORDER BY 1, 2, 3, 4 LIMIT :limit)
    """

    # ---- stats

    # A JSON list of pairs, as a table.
    PAIRS = "SELECT value ->> 0 AS queue, value ->> 1 AS type FROM json_each(:pairs)"
    # The newest failed jobs and the newest that wait for a retry, by type and by what was raised.
    FAILURES = """
    WITH newest AS (
        SELECT * FROM (SELECT type, coalesce(error, '') AS error, completed_at AS at, id, 1 AS failed
                         FROM treadle_finished WHERE status = 'failed' AND status <> 'completed'
                        ORDER BY id DESC LIMIT :limit)
         UNION ALL
        SELECT * FROM (SELECT type, coalesce((SELECT error FROM treadle_attempts a WHERE a.id = r.id
                                               ORDER BY lease DESC LIMIT 1), ''), updated_at, id, 0
                         FROM treadle_ready r WHERE attempts > 0 AND run_at > :now ORDER BY id DESC LIMIT :limit))
    SELECT type, raised, sum(failed), sum(1 - failed), min(at), max(at), max(id)
      FROM (SELECT *, substr(error, 1, instr(error || ':', ':') - 1) AS raised FROM newest)
     GROUP BY type, raised ORDER BY max(at) DESC
    """

    # ---- schedules

    # Move schedules on, if they are as they were read. The answer: those that were.
    # [[tenant, name, next_at, revision, new next_at, last job, its moment, skipped moment, why], …]
    ADVANCE_SCHEDULES = """
    UPDATE treadle_schedules AS s SET next_at = e.value ->> 4, last_job = coalesce(e.value ->> 5, s.last_job),
           last_moment = coalesce(e.value ->> 6, s.last_moment), skipped_at = coalesce(e.value ->> 7, s.skipped_at),
           skipped_why = coalesce(e.value ->> 8, s.skipped_why),
           paused_at = NULL, paused_by = NULL, paused_reason = NULL, paused_until = NULL
      FROM json_each(:rows) e
     WHERE s.tenant = e.value ->> 0 AND s.name = e.value ->> 1 AND s.next_at = e.value ->> 2
       AND s.revision = e.value ->> 3
    RETURNING tenant, name
    """
    # [[tenant, schedule, id], …]
    ADD_FIRED = """
    INSERT INTO treadle_fired (tenant, schedule, id)
    SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:rows) WHERE true ON CONFLICT DO NOTHING
    """
    # Of [[tenant, schedule], …], the jobs that have not ended, each with whether it runs.
    UNENDED = """
    SELECT d.tenant, d.schedule, d.id, EXISTS (SELECT 1 FROM treadle_leases l WHERE l.id = d.id)
      FROM json_each(:names) e JOIN treadle_fired d ON d.tenant = e.value ->> 0 AND d.schedule = e.value ->> 1
     WHERE EXISTS (SELECT 1 FROM treadle_jobs j WHERE j.id = d.id)
       AND NOT EXISTS (SELECT 1 FROM treadle_finished f WHERE f.id = d.id)
     ORDER BY d.id
    """
    # ... and those that have, or were deleted.
    DROP_ENDED = """
    DELETE FROM treadle_fired
     WHERE (tenant, schedule) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:names))
       AND (EXISTS (SELECT 1 FROM treadle_finished f WHERE f.id = treadle_fired.id)
            OR NOT EXISTS (SELECT 1 FROM treadle_jobs j WHERE j.id = treadle_fired.id))
    """

    # ---- operations

    LOCK_OPERATION = "SELECT position FROM treadle_operations WHERE id = :id AND ended_at IS NULL"


def _steps(part: str) -> list[str]:
    """SQLite finds a name as it stands in the JSON, with its escapes."""
    name = f".{encode(part).decode()}"
    return [name, f"[#{part}]" if part[0] == "-" else f"[{part}]"] if is_index(part) else [name]


# ---- schema and versions

META = "SELECT key, value FROM treadle_meta"

# Whether treadle's tables exist.
HAS_META = "SELECT 1 FROM sqlite_master WHERE name = 'treadle_meta'"
# treadle's tables and views, in an order in which they can be dropped.
OURS = "SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view') AND name GLOB 'treadle_*' ORDER BY 1 DESC"

VERSION = "SELECT sqlite_version()"

SET_SCHEMA = "UPDATE treadle_meta SET value = :number WHERE key = 'schema'"

# A server's own time, in seconds since 1970.
SERVER_TIME = "SELECT (julianday('now') - 2440587.5) * 86400.0"
