"""SQLite's own SQL. What all databases share is in `stores/statements`, and what a job meets on its way in
`insert_claim_settle_sql.py`.

Batches travel as one JSON text each way: a statement that moves 500 rows is one step of SQLite, during which Python
runs handlers on another core. (Row by row, each step would have to win the interpreter back.)
"""

import re
from collections.abc import Iterable
from itertools import product
from typing import ClassVar

from treadle.codec import encode
from treadle.filters import is_index
from treadle.stores.statements import Statements
from treadle.stores.statements.parts import BESIDE_TURNS, LEASE_COLUMNS, MOST, OF_RANGE, UNNEEDED, UNTHROTTLED, WALK

_FUNCTIONS = {"least": "min", "greatest": "max", "strpos": "instr", "json_build_array": "json_array"}
_FUNCTIONS |= {"json_agg": "json_group_array", "to_json": "json"}


def from_postgres(sql: str) -> str:
    """The same for SQLite, which has no schemas, needs no casts, locks no rows, and has other names for functions."""
    sql = re.sub(r"\s+FOR (?:NO KEY |KEY )?(?:UPDATE|SHARE)\b(?: OF \w+)?(?: SKIP LOCKED)?", "", sql)
    sql = re.sub(r"(?:CAST\()+(:[\w{}]+)(?: AS \w+\))+", r"\1", sql)
    sql = re.sub(r"::\w+", "", sql).replace("treadle.", "treadle_")
    sql = re.sub(r"ON CONFLICT \([\w, ]+\)", "ON CONFLICT", sql)  # some keys have no tenant here
    sql = re.sub(r" AND a\.tenant = \w\.tenant", "", sql)  # attempts have no tenant of their own
    # A batch is a table of values: `e ->> 0` is a part of one of them.
    sql = re.sub(r"jsonb_array_elements(?:_text)?\(", "json_each(", sql)
    sql = re.sub(r"= ANY\(ARRAY(\(.*?\(:\w+\)\))\)", r"IN \1", re.sub(r"\be (->>?) ", r"e.value \1 ", sql))
    for theirs, ours in _FUNCTIONS.items():
        sql = sql.replace(f"{theirs}(", f"{ours}(")
    return sql.replace(' COLLATE "C"', "")


_UNTHROTTLED, _UNNEEDED = from_postgres(UNTHROTTLED), from_postgres(UNNEEDED)
CLAIMED_COLUMNS = f"json_array({from_postgres(LEASE_COLUMNS)})"


class SQLiteStatements(Statements):
    """The statements of the verbs, in SQLite's form."""

    def __init__(self) -> None:
        super().__init__(from_postgres)

    def translate(self, sql: str) -> str:
        return from_postgres(sql)

    # ---- enqueue

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
    # ... of one status and queue: {type: by how many, …}. To read a part of a row costs as much as to find its place.
    ADD_TALLIES_ALIKE = ADD_TALLIES.replace(
        "value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(:rows)",
        ":status, key, :queue, value FROM json_each(:counts)",
    )

    # A range by turns: of each tenant so many due jobs that they are :wanted in all, and at least :each. The next lower
    # priority, in order and by turns; and whether jobs of a fair type are due that do not wait by turns yet.
    READ_TURNS = from_postgres(f"""
    WITH RECURSIVE {WALK}
    SELECT (SELECT coalesce(json_agg(json_build_array(t.tenant, to_json((
                SELECT coalesce(json_agg(json_build_array(d.run_at, d.id)), '[]') FROM (
                    SELECT r.run_at, r.id FROM treadle.ready r
                     WHERE {OF_RANGE} AND r.tenant = t.tenant AND r.run_at <= :now AND r.parked = 'fair'
                     ORDER BY r.run_at, r.id
                     LIMIT greatest(:each, (SELECT (:wanted + count(*) - 1) / greatest(count(*), 1) FROM turn))
                    ) d)))), '[]')::text FROM (SELECT tenant FROM turn ORDER BY n) t),
           {BESIDE_TURNS}
    """)
    # Let due jobs of a range wait by turns, which wait in order.
    START_TURNS = """
    UPDATE treadle_ready SET parked = 'fair' WHERE id IN (
        SELECT id FROM treadle_ready
         WHERE queue = :queue AND type = :type AND priority = :priority AND run_at <= :now AND parked = ''
         ORDER BY run_at, id LIMIT :most)
    """

    # ---- jobs that were not started in time

    # The first of them: what each is, how long it had, and whether it has a dedupe key.
    EXPIRED = """
    SELECT id, type, queue, parked, start_by - run_at,
           EXISTS (SELECT 1 FROM treadle_jobs j WHERE j.id = treadle_ready.id AND j.dedupe IS NOT NULL)
      FROM treadle_ready WHERE start_by <= :now AND parked <> 'key' ORDER BY start_by LIMIT :limit
    """
    # Lock their keys: nothing to do here, because the one writer locks everything.
    LOCK_FREE_KEYS = ""
    LOCK_SUCCESSORS = ""
    # End jobs that wait. [[id, status, error], …]
    FINISH_WAITING = """
    INSERT INTO treadle_finished
           (id, lease, token, status, queue, type, tenant, attempts, snoozes, worker, run_at, completed_at, error)
    SELECT r.id, 0, 0, e.value ->> 1, r.queue, r.type, r.tenant, r.attempts, r.snoozes, '', r.run_at, :now,
           e.value ->> 2
      FROM json_each(:rows) e JOIN treadle_ready r ON r.id = e.value ->> 0
    """

    # ---- settle

    # [[minute, type, queue, tenant, runs, completed, failures, busy, waiting], …]
    ADD_USAGE_ROW = f"""
    INSERT INTO treadle_usage (minute, type, queue, tenant, runs, completed, failures, busy, waiting)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET runs = min(runs, {MOST}) + excluded.runs,
           completed = min(completed, {MOST}) + excluded.completed,
           failures = min(failures, {MOST}) + excluded.failures,
           busy = min(busy, {MOST}) + excluded.busy, waiting = min(waiting, {MOST}) + excluded.waiting
    """
    ADD_USAGE = ADD_USAGE_ROW.replace(
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        "SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,"
        " value ->> 7, value ->> 8 FROM json_each(:rows) WHERE true",
    )

    # ---- rows broken by hand

    DROP_REPEATED_ATTEMPTS = """
    DELETE FROM treadle_attempts WHERE (id, lease) IN (SELECT id, lease FROM treadle_leases) RETURNING id
    """
    # Of the jobs that wait or run.
    DEFECTIVE_PAYLOADS = """
    SELECT 'payload', count(*), min(j.id)
      FROM (SELECT id FROM treadle_ready UNION ALL SELECT id FROM treadle_leases) p JOIN treadle_jobs j ON j.id = p.id
     WHERE CASE WHEN json_valid(j.payload) THEN json_type(j.payload) <> 'object' ELSE true END
    """

    # ---- limits

    UNIT, ONCE = "char(31)", "LIMIT -1"
    # Those to come to now, which are gone then: [key, …] of each.
    TAKE_OPENINGS = """
    DELETE FROM treadle_openings WHERE seq IN (
        SELECT seq FROM treadle_openings WHERE at <= :now ORDER BY at LIMIT :most)
    RETURNING name, coalesce(keys, json_array(key)), 1
    """
    # Park rows. [[id, what for], …]
    PARK_FOR = """
    UPDATE treadle_ready AS r SET parked = e.value ->> 1 FROM json_each(:rows) e WHERE r.id = e.value ->> 0
    """
    # Put back the most urgent rows of each queue and type that are parked for a key.
    # [[what for, how many], …], at most :n of one. Those of paused tenants, and those that may no longer start, would
    # not use the place: they do not count, and the former are parked for the pause from now on. :beside: so many rows
    # more are looked at. The answer: their queues, what for, and whether they count.
    UNPARK_KEYS = """
    WITH RECURSIVE paused AS (
        SELECT tenant FROM treadle_pauses WHERE tenant <> '' AND (until IS NULL OR until > :now)),
    pair (parked, n, queue, type) AS (
        SELECT r.parked, e.value ->> 1, r.queue, r.type FROM json_each(:rows) e JOIN treadle_ready r ON r.id = (
            SELECT id FROM treadle_ready n WHERE n.parked = e.value ->> 0 AND n.parked > 'fair'
             ORDER BY n.queue, n.type LIMIT 1)
        UNION ALL
        SELECT r.parked, pair.n, r.queue, r.type FROM pair JOIN treadle_ready r ON r.id = coalesce(
            (SELECT id FROM treadle_ready n
              WHERE n.parked = pair.parked AND n.parked > 'fair' AND n.queue = pair.queue AND n.type > pair.type
              ORDER BY n.type LIMIT 1),
            (SELECT id FROM treadle_ready n WHERE n.parked = pair.parked AND n.parked > 'fair' AND n.queue > pair.queue
              ORDER BY n.queue, n.type LIMIT 1))
    )
    UPDATE treadle_ready
       SET parked = CASE WHEN tenant IN (SELECT tenant FROM paused) THEN 'tenant:' || tenant ELSE '' END
     WHERE id IN (
        SELECT j.value ->> 0 FROM pair JOIN json_each((
            SELECT json_group_array(json_array(id, n)) FROM (
                SELECT id, CASE WHEN counts THEN sum(counts) OVER (ORDER BY priority DESC, run_at, id) ELSE 0 END AS n
                  FROM (SELECT id, priority, run_at,
                               tenant NOT IN (SELECT tenant FROM paused) AND (start_by <= :now) IS NOT TRUE AS counts
                          FROM treadle_ready n
                         WHERE n.parked = pair.parked AND n.parked > 'fair' AND n.queue = pair.queue
                           AND n.type = pair.type
                         ORDER BY n.priority DESC, n.run_at, n.id LIMIT :n + :beside)))) j
         WHERE j.value ->> 1 <= pair.n)
    RETURNING queue, '', parked = '' AND (start_by <= :now) IS NOT TRUE
    """
    SET_BUCKETS: tuple[str, ...] = (
        "DELETE FROM treadle_buckets WHERE (name, key) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:keys))",
        from_postgres(Statements.ADD_BUCKETS),
    )
    # Leases have ended: their keys have free places. Only keys for which rows are parked need an opening.
    RELEASE_LIMITS: tuple[str, ...] = (
        """
        INSERT INTO treadle_openings (name, key, at, held)
        SELECT DISTINCT k.name, k.key, :now, 0 FROM treadle_lease_keys k
         WHERE k.id IN (SELECT value FROM json_each(:keyed)) AND EXISTS (
               SELECT 1 FROM treadle_ready r
                WHERE r.parked = 'limit:' || k.name || char(31) || k.key AND r.parked > 'fair')
        """,
        "DELETE FROM treadle_lease_keys WHERE id IN (SELECT value FROM json_each(:ids))",
    )

    # ---- pauses

    # Put back the most urgent rows that are parked for this.
    UNPARK = """
    UPDATE treadle_ready SET parked = '' WHERE id IN (
        SELECT id FROM treadle_ready WHERE parked = :parked AND parked > 'fair'
         ORDER BY parked, queue, type, priority DESC, run_at, id LIMIT :most)
    RETURNING queue
    """
    # Transactions that may be claiming: none, because nobody else writes while this reads what is committed.
    CLAIMING = "SELECT '' WHERE false"

    # ---- waits

    # Of jobs that have ended: those that wait for them, for how many of them each, and whether it takes more than to
    # see that they have ended. A parent that has failed may hold them on.
    _ENDED_WAITS = """
        SELECT w.id, w.what, w.step, f.status = 'completed' OR w.if_failed = 'run' AS is_met
          FROM json_each(:whats) e
         CROSS JOIN treadle_waits w ON w.what = e.value AND w.met = 0 AND w.kind <> 'signal'
         CROSS JOIN treadle_finished f ON f.id = e.value
         WHERE (f.status = 'completed' OR w.if_failed <> 'hold')"""
    WAITERS_OF_ENDED = f"""
    SELECT id, count(*), min(is_met) = 0 FROM ({_ENDED_WAITS} LIMIT :limit) GROUP BY id
    """
    # ... of which these wait no longer for them. (By `id`, SQLite would look for each of them in each wait.)
    MEET_ENDED = f"""
    UPDATE treadle_waits SET met = 1 WHERE (id, what, step) IN (
        SELECT id, what, step FROM ({_ENDED_WAITS} AND +w.id IN (SELECT value FROM json_each(:ids)) LIMIT :limit)
         WHERE is_met)
    """

    # ---- batches

    # Lock the batches of jobs: nothing to do here.
    LOCK_BATCHES: tuple[str, ...] = ()
    # Take counts out, to put their sum back. [[tenant, name], …]
    TAKE_BATCH_COUNTS = """
    DELETE FROM treadle_batch_counts WHERE seq IN (
        SELECT c.seq FROM json_each(:names) e
         CROSS JOIN treadle_batch_counts c ON c.batch = e.value ->> 1 AND c.tenant = e.value ->> 0 LIMIT :most)
    RETURNING tenant, batch, added, completed, failed, cancelled
    """

    # ---- manage

    # Lock a job where it is: nothing to do here, because the one writer locks everything.
    LOCK_JOB: tuple[str, ...] = ()
    JOB = from_postgres(Statements._JOB)
    # What it is read from: each list starts from its own rows.
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
    ERROR_HAS = from_postgres(Statements._ERROR_HAS)
    ERROR_SHOWS = from_postgres(Statements._ERROR_SHOWS)
    PAYLOAD_HAS = from_postgres(Statements._PAYLOAD_HAS)
    # Conditions of a filter: the value at a path of the payload, as JSON and as text; one broken by hand has nothing.
    AT_PATH = (
        "CASE WHEN json_valid(j.payload) THEN j.payload -> :{path} END",
        "CASE WHEN json_valid(j.payload) AND json_type(j.payload, :{path}) = 'text' THEN j.payload ->> :{path} END",
    )

    def paths(self, parts: list[str]) -> list[str]:
        """A path as SQLite writes it, in each of its meanings: a number may be a name or an index."""
        return ["$" + "".join(way) for way in product(*map(_steps, parts))]

    # Ended before :before. An id carries the time it was made, and nothing ends before it is made, so that only ids
    # before :oldest need to be looked at.
    PRUNABLE = f"""
    SELECT id, status, type, queue FROM treadle_finished f
     WHERE id < :oldest AND completed_at < :before AND status IN (SELECT value FROM json_each(:statuses))
       AND {_UNTHROTTLED} AND {_UNNEEDED}
     ORDER BY id LIMIT :limit
    """
    PRUNE_USAGE = """
    DELETE FROM treadle_usage WHERE (minute, type, queue, tenant) IN
           (SELECT minute, type, queue, tenant FROM treadle_usage WHERE minute < :before
             ORDER BY 1, 2, 3, 4 LIMIT :limit)
    """

    # ---- schedules

    # Of [[tenant, schedule], …], the jobs that have ended or were deleted.
    DROP_ENDED = """
    DELETE FROM treadle_fired
     WHERE (tenant, schedule) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:names))
       AND (EXISTS (SELECT 1 FROM treadle_finished f WHERE f.id = treadle_fired.id)
            OR NOT EXISTS (SELECT 1 FROM treadle_jobs j WHERE j.id = treadle_fired.id))
    """

    # ---- copying

    # The columns of a table, each with the type that a value is cast to.
    COLUMNS = "SELECT name, '' FROM pragma_table_info('treadle_' || :table)"
    LEASES_GIVEN = "SELECT value FROM treadle_meta WHERE key = 'lease'"
    RAISE_LEASES = "UPDATE treadle_meta SET value = max(value, :number) WHERE key = 'lease'"

    def forbid(self, name: str, tables: Iterable[str], changes: Iterable[str], text: str, when: str) -> list[str]:
        """Let nobody change these tables in these ways while `when` is true: `text` says why."""
        text = text.replace("'", "''")
        return [
            f"CREATE TRIGGER IF NOT EXISTS treadle_{name}_{table}_{change} BEFORE {change} ON treadle_{table}"
            f" WHEN {when} BEGIN SELECT RAISE(ABORT, '{text}'); END"
            for table, change in product(tables, changes)
        ]

    def allow(self, name: str, tables: Iterable[str]) -> list[str]:
        """Undo `forbid`."""
        changes = ("INSERT", "UPDATE", "DELETE")
        return [f"DROP TRIGGER IF EXISTS treadle_{name}_{table}_{change}" for table, change in product(tables, changes)]


def _steps(part: str) -> list[str]:
    """SQLite finds a name as it stands in the JSON, with its escapes."""
    name = f".{encode(part).decode()}"
    return [name, f"[#{part}]" if part[0] == "-" else f"[{part}]"] if is_index(part) else [name]


# ---- schema and versions

META = "SELECT key, value FROM treadle_meta"
# Every job, and what is known of workers and types. Not the counter of leases: no number is given twice.
# fmt: off
EMPTY = (
    "DELETE FROM treadle_jobs", "DELETE FROM treadle_ready", "DELETE FROM treadle_leases",
    "DELETE FROM treadle_finished", "DELETE FROM treadle_attempts", "DELETE FROM treadle_steps",
    "DELETE FROM treadle_waits", "DELETE FROM treadle_signals", "DELETE FROM treadle_arrivals",
    "DELETE FROM treadle_batches", "DELETE FROM treadle_batch_counts", "DELETE FROM treadle_logs",
    "DELETE FROM treadle_dedupe", "DELETE FROM treadle_types", "DELETE FROM treadle_limits",
    "DELETE FROM treadle_lease_keys", "DELETE FROM treadle_openings", "DELETE FROM treadle_buckets",
    "DELETE FROM treadle_workers", "DELETE FROM treadle_schedules", "DELETE FROM treadle_fired",
    "DELETE FROM treadle_pauses", "DELETE FROM treadle_tallies", "DELETE FROM treadle_usage",
    "DELETE FROM treadle_backlog", "DELETE FROM treadle_audit", "DELETE FROM treadle_tokens",
    "DELETE FROM treadle_operations", "DELETE FROM treadle_requests",
)
# fmt: on

# Whether treadle's tables exist.
HAS_META = "SELECT 1 FROM sqlite_master WHERE name = 'treadle_meta'"
# treadle's tables and views, in an order in which they can be dropped.
OURS = "SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view') AND name GLOB 'treadle_*' ORDER BY 1 DESC"

VERSION = "SELECT sqlite_version()"

SET_SCHEMA = "UPDATE treadle_meta SET value = :number WHERE key = 'schema'"

# A server's own time, in seconds since 1970.
SERVER_TIME = "SELECT (julianday('now') - 2440587.5) * 86400.0"
