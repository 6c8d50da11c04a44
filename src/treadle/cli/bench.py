"""`treadle bench`: how fast treadle is here. The benchmarks for its developers are in bench/ of the repository."""

from __future__ import annotations

import os
import platform
import random
import secrets
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from subprocess import DEVNULL, PIPE, Popen
from urllib.parse import urlsplit

import click
import msgspec

from treadle.app import Treadle
from treadle.cli import output
from treadle.cli.base import Shared, command
from treadle.cli.errors import PROBLEMS, CommandError
from treadle.management import every_job
from treadle.stores import open_store
from treadle.stores.libsql.connection import Database
from treadle.stores.libsql.url import read
from treadle.stores.sqlite import sql
from treadle.stores.sqlite.url import check, path_of

THREADS, CHUNK = 64, 1000
STALLED = 60.0  # seconds without progress after which a drain is given up
WORKER = "import sys; from treadle.cli.bench import work; work(int(sys.argv[1]))"


class Sizes(msgspec.Struct, frozen=True):
    """How much is measured; `seconds` for each way to enqueue one job at a time."""

    repeats: int
    noop: int
    noop_thread: int
    bulk: int
    seconds: float
    pickups: int


class Measurement(msgspec.Struct):
    """One measured value. `low` and `high` are the spread of its repetitions."""

    section: str
    key: str
    what: str
    unit: str
    value: float
    low: float
    high: float


class BenchRun(msgspec.Struct, frozen=True):
    """Where, and how much, to measure."""

    db: str
    sizes: Sizes
    concurrency: int
    say: Callable[[str], None]

    def rate(self, section: str, key: str, what: str, measure: Callable[[], float]) -> Measurement:
        values = []
        for repeat in range(1, self.sizes.repeats + 1):
            self.say(f"{section}: {what} ({repeat} of {self.sizes.repeats})")
            values.append(measure())
        return _row(section, key, what, "jobs/s", values)


def _row(section: str, key: str, what: str, unit: str, values: Sequence[float]) -> Measurement:
    return Measurement(section, key, what, unit, statistics.median(values), min(values), max(values))


def measure_enqueue(run: BenchRun) -> list[Measurement]:
    """One by one, from threads that share commits, and in bulk."""
    with new_database(run.db) as td:
        rate, seconds = partial(run.rate, "enqueue"), run.sizes.seconds
        return [
            rate("enqueue_singly", "singly", lambda: _from_threads(td, 1, seconds)),
            rate("enqueue_threads", f"from {THREADS} threads", lambda: _from_threads(td, THREADS, seconds)),
            rate("enqueue_bulk", f"in bulk, {CHUNK:,} a call", lambda: _in_bulk(td, "noop", run.sizes.bulk)),
        ]


def _from_threads(td: Treadle, threads: int, seconds: float) -> float:
    """Jobs per second of threads that each enqueue one job at a time."""
    began = time.perf_counter()

    def produce(_: int) -> int:
        count = 0
        while time.perf_counter() - began < seconds:
            td.enqueue("noop", {"n": count})
            count += 1
        return count

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(produce, range(threads))) / (time.perf_counter() - began)


def _in_bulk(td: Treadle, type: str, n: int) -> float:
    """Jobs per second in calls of `enqueue_many`."""
    began = time.perf_counter()
    for start in range(0, n, CHUNK):
        td.enqueue_many([td.request(type, {"n": i}) for i in range(start, min(n, start + CHUNK))])
    return n / (time.perf_counter() - began)


def measure_drain(run: BenchRun) -> list[Measurement]:
    """Jobs that wait, until worker processes have completed them all."""
    return [
        run.rate("drain", f"drain_{kind}_{n}", f"{kind} no-ops, {processes}", partial(_drain, run, type, jobs, n))
        for type, kind, jobs in (("noop", "async", run.sizes.noop), ("noop_thread", "thread", run.sizes.noop_thread))
        for n, processes in ((1, "1 process"), (2, "2 processes"))
    ]


def _drain(run: BenchRun, type: str, n: int, processes: int) -> float:
    """Jobs per second from the first claim to the last completion, as the database recorded them."""
    with new_database(run.db) as td:
        _in_bulk(td, type, n)
        with _workers(td, processes, run.concurrency) as workers:
            _wait_for(td, workers, n)
        jobs = list(every_job(td))
        first = min(job.started_at for job in jobs if job.started_at)
        last = max(job.completed_at for job in jobs if job.completed_at)
        return n / max(1e-6, (last - first).total_seconds())


def measure_pickup(run: BenchRun) -> list[Measurement]:
    """Milliseconds from an enqueue in one process to the start of the handler in another, idle one."""
    run.say(f"pickup: {run.sizes.pickups} jobs, one by one")
    sent: dict[str, int] = {}
    with new_database(run.db) as td, _workers(td, 1, run.concurrency):
        td.result(td.enqueue("stamp").id)  # the first one finds the worker starting, and is not counted
        for _ in range(run.sizes.pickups):
            time.sleep(random.uniform(0.02, 0.12))  # at random, so as not to fall into step with the worker's polls
            sent[td.enqueue("stamp").id] = time.time_ns()
        started = {id: td.result(id) for id in sent}
    took = sorted((at - sent[id]) / 1e6 for id, at in started.items())
    found = {"p50": took, "p99": [took[-(-len(took) * 99 // 100) - 1]]}
    return [_row("pickup", f"pickup_return_{p}", f"{p} from enqueue's return", "ms", found[p]) for p in found]


def work(concurrency: int) -> None:
    """A worker process, whose handlers do nothing. It waits for a line, so that no start of Python is measured."""
    td = Treadle()

    @td.job
    async def noop(n: int) -> None: ...

    @td.job
    def noop_thread(n: int) -> None: ...

    @td.job
    async def stamp() -> int:
        return time.time_ns()

    td.store.open()
    print("ready", flush=True)
    if sys.stdin.readline():
        td.worker(concurrency=concurrency).run()


@contextmanager
def _workers(td: Treadle, processes: int, concurrency: int) -> Generator[list[Popen[str]]]:
    """Worker processes that start together, and are gone at the end of the block."""
    command = [sys.executable, "-c", WORKER, str(concurrency)]
    env = {**os.environ, "TREADLE_URL": td.store.url}
    start = partial(Popen[str], command, env=env, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True)
    workers = [start() for _ in range(processes)]
    try:
        if any(worker.stdout and not worker.stdout.readline() for worker in workers):
            raise CommandError("a worker process of the benchmark did not start", code=PROBLEMS)
        for worker in workers:
            print("go", file=worker.stdin, flush=True)
        yield workers
    finally:
        for worker in workers:
            worker.terminate()
            worker.communicate()


def _wait_for(td: Treadle, workers: Sequence[Popen[str]], n: int) -> None:
    """Until `n` jobs are completed. Raises if the number does not grow, or if a worker ends."""
    seen, moved_at = -1, time.monotonic()
    while (now := sum(row["count"] for row in td.counts() if row["status"] == "completed")) < n:
        if now != seen:
            seen, moved_at = now, time.monotonic()
        if time.monotonic() - moved_at > STALLED or any(worker.poll() is not None for worker in workers):
            raise CommandError(f"the workers of the benchmark stopped at {now} of {n} jobs", code=PROBLEMS)
        time.sleep(0.02)


@contextmanager
def new_database(db: str) -> Generator[Treadle]:
    """An empty database next to the one named. It is removed afterwards."""
    make = _in_folder if db.startswith("sqlite:") else _on_postgres if db.startswith("postgres") else _on_libsql
    with ExitStack() as stack:
        yield stack.enter_context(closing(Treadle(make(db, stack))))


def _in_folder(db: str, stack: ExitStack) -> str:
    check(path_of(db))
    folder = tempfile.TemporaryDirectory(prefix=".treadle-bench-", dir=path_of(db).parent)
    return f"sqlite:///{stack.enter_context(folder)}/bench.db"


def _on_postgres(db: str, stack: ExitStack) -> str:
    open_store(db)  # raises if the URL is wrong, or psycopg is missing
    import psycopg
    from psycopg.sql import SQL, Identifier

    made = f"treadle_bench_{secrets.token_hex(6)}"
    server = stack.enter_context(psycopg.connect(db, autocommit=True))
    server.execute(SQL("CREATE DATABASE {}").format(Identifier(made)))
    stack.callback(server.execute, SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(made)))
    return with_database(db, made)


def _on_libsql(db: str, stack: ExitStack) -> str:
    """A libSQL server has one database, so it is measured only if treadle has no tables there."""
    if (store := open_store(db)).schema():
        what = f"{store.where} has treadle's tables, and a libSQL server has no second database to measure in"
        raise CommandError(what, next="name a server of its own")
    stack.callback(_drop_tables, stack.enter_context(closing(Database(read(db), None))))
    return db


def _drop_tables(server: Database) -> None:
    for kind, name in server.read("read", lambda tx: tx.execute(sql.OURS).fetchall()):
        server.write("write", lambda tx, drop: tx.execute(drop), f"DROP {kind} {name}")


def with_database(url: str, name: str) -> str:
    """The URL with another database in it, wherever it stands."""
    parts = urlsplit(url)
    query = "&".join(part for part in parts.query.split("&") if part and not part.startswith("dbname="))
    return f"{parts.scheme}://{parts.netloc}/{name}{'?' if query else ''}{query}"


def _machine(run: BenchRun) -> dict[str, object]:
    with new_database(run.db) as td:
        status = dict(td.store.status())
    database = f"{status['store']} {status.get('sqlite_version') or status.get('server_version')}"
    return {
        "cores": os.cpu_count() or 1,
        "cpu": platform.processor() or platform.machine(),
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "database": {"database": database, "settings": status, "where": open_store(run.db).where},
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,  # Windows has none
        "concurrency": run.concurrency,
        "sizes": run.sizes,
    }


SECTIONS = {"enqueue": measure_enqueue, "drain": measure_drain, "pickup": measure_pickup}


@command("bench")
@click.option("--dir", metavar="DIR", type=click.Path(file_okay=False), help="Measure SQLite there.")
@click.option("--quick", is_flag=True, help="Small sizes, each once: shows that it works, too small to judge.")
@click.option("--only", metavar="NAMES", default=",".join(SECTIONS), show_default=True, help="What to measure.")
@click.option("--n", type=click.IntRange(100), metavar="N", help="Async no-ops in a drain; the others in proportion.")
@click.option("--concurrency", "slots", type=click.IntRange(1), default=500, metavar="N", help="Slots of each worker.")
@click.option("--profile", is_flag=True, help="Where the time of a drain goes: only in ./script/bench.")
def bench(shared: Shared, dir: str | None, quick: bool, only: str, n: int | None, slots: int, profile: bool) -> None:
    """Measure how fast enqueue, drain and pickup are on this machine.

    It measures in a new directory next to the SQLite file of --db (default: in the current directory) or in new
    databases next to the PostgreSQL one, and removes everything when it ends. The database itself is left alone, and
    $TREADLE_URL is ignored. A libSQL server has one database: it is measured only if treadle has no tables there.
    """
    if shared.db and dir:
        raise click.UsageError("name either --db or --dir")
    names = [name.strip() for name in only.split(",")]
    if unknown := ["--profile"] * profile + [name for name in names if name not in SECTIONS]:
        what = f"{unknown[0]} is not one of {', '.join(SECTIONS)}"
        raise CommandError(what, next="for more, run ./script/bench in a clone of the repository")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no database is left behind
    noop = n or (4_000 if quick else 50_000)
    sizes = Sizes(1, noop, noop // 2, noop, 0.3, 25) if quick else Sizes(3, noop, noop // 2, noop, 1.0, 250)
    run = BenchRun(shared.db or f"sqlite:///{os.path.abspath(dir or '.')}/bench.db", sizes, slots, shared.note)
    machine, rows = _machine(run), [row for name in names for row in SECTIONS[name](run)]
    if shared.printed_json({"machine": machine, "rows": rows, "profile": None}):
        return
    numbers = {"measured": [r.value for r in rows], "from": [r.low for r in rows], "to": [r.high for r in rows]}
    columns = {head: [f"{n:,.{0 if n >= 100 else 2}f}" for n in values] for head, values in numbers.items()}
    output.show(shared, {"": [f"{r.section}: {r.what}, {r.unit}" for r in rows], **columns}, right=numbers)
