"""Counts, times, failures and usage, and what waited in each minute."""

from treadle.job import Status
from treadle.stores.statements.parts import SUMS_OF_USAGE, TALLIES

_BY_STATUS = ", ".join(f"coalesce(sum(count) FILTER (WHERE status = '{status}'), 0)::bigint" for status in Status)


class Stats:
    """What counts and measures jobs."""

    # ---- stats

    # Counts from the tallies. {which}: conditions. {by}: some columns, each with a comma behind it.
    TALLIED = f"SELECT {{by}} sum(count)::bigint FROM {TALLIES} t WHERE {{which}} GROUP BY {{group}}"
    # How many queues and types there are, those with the most jobs, and how many of these have each status.
    LARGEST_QUEUES = f"""
        SELECT count(*) OVER (), queue, type, {_BY_STATUS} FROM {TALLIES} t WHERE {{which}}
         GROUP BY queue, type HAVING sum(count) <> 0 ORDER BY sum(count) DESC, queue, type LIMIT :queues
    """
    # A JSON list of pairs, as a table.
    PAIRS = "SELECT e ->> 0 AS queue, e ->> 1 AS type FROM jsonb_array_elements(CAST(:pairs AS text)::jsonb) e"
    # Of each (queue, type, priority) that waits: since when the oldest is due, when the next is, how many are later.
    # Parked jobs are due, but nobody could take them. {pairs}: the queues and types.
    _LEVELS = """
        WITH RECURSIVE level (queue, type, priority) AS (
            SELECT queue, type, (SELECT priority FROM treadle.ready r WHERE r.queue = t.queue AND r.type = t.type
                                    AND r.parked = '' ORDER BY priority DESC LIMIT 1)
              FROM ({pairs}) t
            UNION ALL
            SELECT queue, type, (SELECT priority FROM treadle.ready r WHERE r.queue = l.queue AND r.type = l.type
                                    AND r.priority < l.priority AND r.parked = '' ORDER BY priority DESC LIMIT 1)
              FROM level l WHERE priority IS NOT NULL
        )"""
    WAITING_BY_PRIORITY = f"""{_LEVELS}
        SELECT queue, type,
               (SELECT run_at FROM treadle.ready r WHERE r.queue = l.queue AND r.type = l.type
                   AND r.priority = l.priority AND run_at <= :now AND r.parked = '' ORDER BY run_at LIMIT 1),
               (SELECT run_at FROM treadle.ready r WHERE r.queue = l.queue AND r.type = l.type
                   AND r.priority = l.priority AND run_at > :now AND r.parked = '' ORDER BY run_at LIMIT 1),
               (SELECT count(*) FROM (SELECT 1 FROM treadle.ready r WHERE r.queue = l.queue AND r.type = l.type
                   AND r.priority = l.priority AND run_at > :now AND r.parked = '' LIMIT :most) a)
          FROM level l WHERE priority IS NOT NULL LIMIT :levels
    """
    # ... and of those that wait by turns: since when the oldest is due, of the first :most tenants.
    _LEVELS_BY_TURNS = _LEVELS.replace("parked = ''", "parked = 'fair'")
    _FAIR = (
        "treadle.ready r WHERE r.queue = w.queue AND r.type = w.type AND r.priority = w.priority AND parked = 'fair'"
    )
    OLDEST_BY_TURNS = f"""{_LEVELS_BY_TURNS},
        tenants (queue, type, priority, tenant) AS (
            SELECT queue, type, priority, (SELECT r.tenant FROM {_FAIR} ORDER BY r.tenant LIMIT 1)
              FROM level w WHERE priority IS NOT NULL
            UNION ALL
            SELECT queue, type, priority, (
                   SELECT r.tenant FROM {_FAIR} AND r.tenant > w.tenant ORDER BY r.tenant LIMIT 1)
              FROM tenants w WHERE tenant IS NOT NULL
        )
        SELECT queue, type, min((SELECT r.run_at FROM {_FAIR} AND r.tenant = w.tenant AND r.run_at <= :now
                                  ORDER BY r.run_at LIMIT 1))
          FROM (SELECT * FROM tenants WHERE tenant IS NOT NULL LIMIT :most) w GROUP BY queue, type
    """
    # The newest jobs that failed before: how many there are, and how many of them wait for their next attempt.
    RETRYING = """
        SELECT queue, type, count(*), count(*) FILTER (WHERE run_at > :now) FROM (
            SELECT queue, type, run_at FROM treadle.ready WHERE attempts > 0 ORDER BY id DESC LIMIT :most) a
         GROUP BY queue, type
    """
    # Of the newest ended jobs those that ran: how long they waited, and how long they ran.
    LATENCY_SAMPLE = """
        SELECT type, queue, run_at, started_at, completed_at
          FROM (SELECT type, queue, run_at, started_at, completed_at FROM treadle.finished
                 ORDER BY id DESC LIMIT :looked_at) a
         WHERE started_at IS NOT NULL LIMIT :limit
    """
    # The newest failed jobs and the newest that wait for a retry, by type and by what was raised.
    FAILURES = """
        WITH newest AS (
            SELECT * FROM (SELECT type, coalesce(error, '') AS error, completed_at AS at, id, 1 AS failed
                             FROM treadle.finished WHERE status = 'failed' AND status <> 'completed'
                            ORDER BY id DESC LIMIT :limit) ended
             UNION ALL
            SELECT * FROM (SELECT type, coalesce((SELECT error FROM treadle.attempts a
                                                   WHERE a.id = r.id AND a.tenant = r.tenant
                                                   ORDER BY lease DESC LIMIT 1), ''), updated_at, id, 0
                             FROM treadle.ready r WHERE attempts > 0 AND run_at > :now
                            ORDER BY id DESC LIMIT :limit) waiting)
        SELECT type, raised, sum(failed), sum(1 - failed), min(at), max(at), max(id::text)
          FROM (SELECT *, substr(error, 1, strpos(error || ':', ':') - 1) AS raised FROM newest) n
         GROUP BY type, raised ORDER BY max(at) DESC
    """
    _DURING = """
        minute >= :since AND minute < :until AND (CAST(:tenant AS text) IS NULL OR tenant = CAST(:tenant AS text))
           AND (CAST(:type AS text) IS NULL OR type = CAST(:type AS text))
    """
    # {by}: some of type, queue, tenant, each with a comma behind it. {which}: a condition.
    USAGE = f"""
        SELECT minute / :step * :step, {{by}} {SUMS_OF_USAGE}
          FROM treadle.usage WHERE {_DURING} AND {{which}} GROUP BY {{group}} ORDER BY {{group}}
    """
    # The {names}, some of type, queue, tenant, with the most runs.
    MOST_USED = f"""
        SELECT {{names}} FROM treadle.usage WHERE {_DURING}
         GROUP BY {{names}} ORDER BY sum(runs) DESC, {{names}} LIMIT :most
    """

    # ---- backlog

    IS_SAMPLED = "SELECT 1 FROM treadle.backlog WHERE minute = :minute"
    # How many jobs are pending, how many of them are for later (at most :most), and how many are processing.
    BACKLOG_NOW = f"""
        SELECT coalesce(sum(count) FILTER (WHERE status = 'pending'), 0)::bigint,
               (SELECT count(*) FROM (SELECT 1 FROM treadle.ready WHERE run_at > updated_at AND run_at > :now
                                         AND parked = '' LIMIT :most) a),
               coalesce(sum(count) FILTER (WHERE status = 'processing'), 0)::bigint
          FROM {TALLIES} t
    """
    SAMPLE = """
        INSERT INTO treadle.backlog (minute, queued, later, processing)
        VALUES (:minute, :queued, :later, :processing) ON CONFLICT DO NOTHING
    """
    # The most of each step.
    BACKLOG = """
        SELECT minute / :step * :step, max(queued), max(later), max(processing) FROM treadle.backlog
         WHERE minute >= :since AND minute < :until GROUP BY 1 ORDER BY 1
    """
    PRUNE_BACKLOG = "DELETE FROM treadle.backlog WHERE minute < :before"
