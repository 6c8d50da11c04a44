"""The queues. What each promises is from its own documentation, at the version that is measured."""

from __future__ import annotations

import msgspec

from bench.peers.figures import SINGLY
from bench.peers.peer import TREADLE, Peer

ITSELF = Peer(
    name=TREADLE,
    program="treadle_queue",
    stores=("PostgreSQL", "SQLite"),
    dies="runs again: at once under `treadle worker`, else after 15 to 20 s",
    promise="The jobs of a dead worker run again: at once if its supervisor, or a worker that starts on "
    "the same machine, finds its process gone; else after three heartbeats, 15 to 20 seconds.",
    source="workers.md",
)

PEERS = (
    ITSELF,
    msgspec.structs.replace(ITSELF, name=SINGLY),
    Peer(
        name="graphile-worker",
        program="graphile_worker.mjs",
        stores=("PostgreSQL",),
        dies="runs again after 4 hours",
        promise="Jobs of a worker that is killed stay locked for at least 4 hours, those in its local queue "
        "too. Then they become available again.",
        source="https://worker.graphile.org/docs/error-handling",
    ),
    Peer(
        name="pg-boss",
        program="pg_boss.mjs",
        stores=("PostgreSQL",),
        dies="is retried after 15 minutes",
        promise="A job may be active for 15 minutes (`expireInSeconds`), and is then retried, twice by "
        "default. Heartbeats (`heartbeatSeconds`) find a dead worker earlier; they are off by "
        "default.",
        source="https://pgboss.io/api/queues",
    ),
    Peer(
        name="PgQueuer",
        program="pgqueuer_queue",
        stores=("PostgreSQL",),
        packages=("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
        dies="runs again after 30 s",
        promise="A job whose heartbeat is older than `heartbeat_timeout`, 30 seconds by default, is picked "
        "again by any worker.",
        source="https://github.com/janbjorge/pgqueuer/blob/main/docs/guides/heartbeat.md",
    ),
    Peer(
        name="Procrastinate",
        program="procrastinate_queue",
        stores=("PostgreSQL",),
        packages=("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.9"),
        share=0.03,
        dies="stays `doing` until your code retries it",
        promise="Jobs of a worker that is killed stay `doing` for good, unless a periodic task that you write "
        "finds them (`get_stalled_jobs`, by heartbeat) and retries them.",
        source="https://procrastinate.readthedocs.io/en/stable/howto/production/retry_stalled_jobs.html",
    ),
    Peer(
        name="BullMQ",
        program="bullmq.mjs",
        stores=("Redis",),
        share=0.3,
        dies="runs again after 30 s or more, once",
        promise="A job whose worker no longer renews its lock (30 seconds) has stalled and waits again. If it "
        "stalls more often than `maxStalledCount`, 1 by default, it fails for good.",
        source="https://docs.bullmq.io/guide/jobs/stalled",
    ),
    Peer(
        name="Celery",
        program="celery_queue",
        stores=("Redis",),
        packages=("celery==5.7.0", "redis==8.1.0"),
        share=0.03,
        dies="is lost",
        promise="A task is acknowledged just before it runs, so that it is not delivered again if its worker "
        "is killed. `task_acks_late` changes that.",
        source="https://docs.celeryq.dev/en/stable/glossary.html",
    ),
    Peer(
        name="Dramatiq",
        program="dramatiq_queue",
        stores=("Redis",),
        packages=("dramatiq==2.2.1", "redis==8.1.0"),
        share=0.1,
        dies="is delivered again later",
        promise="Messages are acknowledged after they are processed. Those that a dead worker had taken are "
        "eventually delivered again; with Redis, it counts as dead after 60 seconds without a "
        "heartbeat.",
        source="https://dramatiq.io/advanced.html",
    ),
    Peer(
        name="Huey",
        program="huey_queue",
        stores=("SQLite",),
        packages=("huey==3.5.4",),
        share=0.2,
        dies="is lost",
        promise="Huey does not acknowledge tasks, and does not promise to deliver them at least once: a task "
        "that runs when its consumer is killed is lost.",
        source="https://huey.readthedocs.io/en/latest/consumer.html",
    ),
)
