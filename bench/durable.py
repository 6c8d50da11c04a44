"""Durable handlers: what steps and waits cost, compared with jobs that have none."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from functools import partial

from bench.control import PAIRS, fill, insert
from bench.database import BenchDatabase
from bench.measure import Sample, alternately
from bench.pickup import GAPS
from bench.report import ReportRow, Target
from bench.setting import Setting
from bench.workers import wait_for, working
from treadle import Treadle
from treadle.ids import new_id
from treadle.job import ClaimedJob, NewJob, Status
from treadle.outcome import COMPLETED
from treadle.steps import NewStep
from treadle.stores.base import ClaimRequest

HANDLERS = 64


def measure(setting: Setting) -> list[ReportRow]:
    return [_step(setting), _steps(setting), _fan_in(setting), *_signal(setting)]


def _step(setting: Setting) -> ReportRow:
    """One at a time, in this process."""
    database = setting.backend.new("steps")
    app = Treadle(database.url)

    def save(one: ClaimedJob) -> None:
        assert app.store.save_steps([(one, NewStep("a", position=1))]) == [None]

    def settle(one: ClaimedJob) -> None:
        assert app.store.settle([(one, COMPLETED)]).written

    try:
        step, settled = alternately(
            setting,
            {
                "steps, one by one": partial(_each, setting, app, database, save),
                "settles, one by one": partial(_each, setting, app, database, settle),
            },
            min(PAIRS, setting.sizes.pairs),
        ).values()
    finally:
        app.close()
        database.close()
    target = Target(at_most=1.5)
    return ReportRow.of("durable", "step", "a stored step", "ms", step, ("a settle", settled), target)


def _each(setting: Setting, app: Treadle, database: BenchDatabase, call: Callable[[ClaimedJob], None]) -> float:
    """Milliseconds that the call takes for a job."""
    n = setting.sizes.pickups
    fill(app, database, n, lambda _: ("noop", ""))
    claimed = app.store.claim("", ClaimRequest(limit=n))
    began = time.perf_counter()
    for one in claimed:
        call(one)
    took = time.perf_counter() - began
    app.store.settle([(one, COMPLETED) for one in claimed])
    return took / n * 1000


def _steps(setting: Setting) -> ReportRow:
    """In a worker process. Those that are stored at the same time share commits."""
    many, one = alternately(
        setting,
        {
            f"steps of {HANDLERS} handlers": partial(_stored, setting, HANDLERS),
            "steps of one handler": partial(_stored, setting, 1),
        },
        min(PAIRS, setting.sizes.pairs),
    ).values()
    what = f"steps of {HANDLERS} handlers at once"
    return ReportRow.of("durable", "steps", what, "steps/s", many, ("one handler", one), Target(ratio=4))


def _stored(setting: Setting, handlers: int) -> float:
    """Steps per second, in a new database."""
    steps, database = setting.sizes.pickups, setting.backend.new("steps")
    app = Treadle(database.url)
    try:
        insert(
            app,
            database,
            (NewJob(id=new_id(), type="stepper", payload=f'{{"steps":{steps}}}') for _ in range(handlers)),
        )
        with working(database, 1, handlers) as workers:
            wait_for(workers, lambda: -database.left(), 0, every=0.1)
        return steps * database.rate()
    finally:
        app.close()
        database.close()


def _fan_in(setting: Setting) -> ReportRow:
    n = setting.sizes.noop_thread // 2
    fan_in, plain = alternately(
        setting,
        {
            f"drain: {n:,} parents of one job": partial(_drain, setting, n, waits=True),
            f"drain: {n:,} jobs": partial(_drain, setting, n, waits=False),
        },
        min(PAIRS, setting.sizes.pairs),
    ).values()
    what = f"drain of {n:,} parents of one job"
    return ReportRow.of("durable", "fan_in", what, "jobs/s", fan_in, ("plain", plain), Target(ratio=0.5))


def _signal(setting: Setting) -> list[ReportRow]:
    """Milliseconds until the handler of an idle worker goes on; from the call of `signal`, and from its return."""
    database = setting.backend.new("signal")
    app = Treadle(database.url)
    sent: dict[str, tuple[int, int]] = {}
    setting.say(f"signals: {setting.sizes.pickups}, one by one")
    try:
        jobs = app.store.insert([_waiter(f"go {n}") for n in range(setting.sizes.pickups)])
        with working(database, 1, setting.concurrency) as workers:
            wait_for(workers, lambda: _blocked(app), len(jobs))
            for n, job in enumerate(jobs):
                time.sleep(random.uniform(*GAPS))
                called = time.time_ns()
                app.signal(f"go {n}")
                sent[job.id] = (called, time.time_ns())
            wait_for(workers, lambda: database.completed("waiter"), len(jobs))
        started = database.results()
    finally:
        app.close()
        database.close()
    rows = []
    for n, moment in enumerate(("call", "return")):
        sample = Sample((statistics.median((at - sent[id][n]) / 1e6 for id, at in started.items()),))
        what = f"signal to start, p50 from its {moment}"
        rows.append(ReportRow.of("durable", f"signal_{moment}", what, "ms", sample, target=Target(below=10)))
    return rows


def _waiter(name: str) -> NewJob:
    return NewJob(id=new_id(), type="waiter", payload=f'{{"name":"{name}"}}')


def _blocked(app: Treadle) -> int:
    rows = app.store.counts(("status",)).rows
    return sum(row["count"] for row in rows if row["status"] == Status.BLOCKED)


def _drain(setting: Setting, n: int, *, waits: bool) -> float:
    """Jobs per second, in a new database."""
    database = setting.backend.new("fan-in")
    app = Treadle(database.url)
    try:
        ids = fill(app, database, n, lambda _: ("noop", ""))
        after = tuple(ids) if waits else ()
        app.store.insert([NewJob(id=new_id(), type="noop", payload='{"n":0}', after=after)])
        with working(database, 1, setting.concurrency) as workers:
            wait_for(workers, lambda: -database.left(), 0, every=0.1)
        return database.rate()
    finally:
        app.close()
        database.close()
